"""From a checkpoint's config.json to its circuit: pick the map, classify every key, instantiate."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit.circuit_toml import included_libraries, parse_circuit
from metpipe.circuit.config_map import ABSENT, ConfigMap, DimRule, KeyRule, ParamGroup, SizeCheck
from metpipe.circuit.description import Description
from metpipe.circuit.errors import RefusedConfig
from metpipe.circuit.instantiate import Shape, instantiate
from metpipe.circuit.ir import Circuit
from metpipe.circuit.precision import Precision
from metpipe.circuit.quantization import declared_precision
from metpipe.circuit.verify import verify

__all__ = ["Library", "Resolved", "resolve_checkpoint", "resolve_shape"]


@dataclass(frozen=True, slots=True)
class Library:
    """Every known architecture: config maps and circuit descriptions."""

    maps: tuple[ConfigMap, ...]
    descriptions: Mapping[str, Description]

    @classmethod
    def parse(
        cls, maps: Mapping[str, str], circuits: Mapping[str, str], blocks: Mapping[str, str]
    ) -> Library:
        """Read file texts: maps and circuits by file name, blocks by library name."""
        described = [
            parse_circuit(text, source, {n: blocks[n] for n in _known(text, source, blocks)})
            for source, text in circuits.items()
        ]
        return cls(
            maps=tuple(ConfigMap.parse(text, source) for source, text in maps.items()),
            descriptions={description.arch: description for description in described},
        )

    def map_for(self, config: Mapping[str, object], source: str) -> ConfigMap:
        """The config map of a config's model type.

        Raises:
            RefusedConfig: it has no model type, or no architecture is mapped to it.
        """
        model_type = config.get("model_type")
        for candidate in self.maps:
            if model_type in candidate.model_types:
                return candidate.for_model_type(str(model_type))
        known = ", ".join(sorted(name for found in self.maps for name in found.model_types))
        has = f"model_type {model_type!r}" if model_type is not None else "no model_type"
        raise RefusedConfig(
            f"{source} has {has}; the model types with a circuit are {known}. Add a config map "
            "and a circuit under kernels/circuits/ for another one"
        )


def _known(text: str, source: str, blocks: Mapping[str, str]) -> list[str]:
    return [name for name in included_libraries(text, source) if name in blocks]


@dataclass(frozen=True, slots=True)
class Resolved:
    """A checkpoint understood: its circuit, with the weight formats that it declares."""

    arch: str
    model_type: str
    circuit: Circuit
    dims: Mapping[str, int]
    params: Mapping[str, str]
    kv_format: str
    """declared: bf16 or fp8/tensor"""
    precision: Precision
    source: str


def resolve_checkpoint(
    config: Mapping[str, object], *, library: Library, source: str = "config.json"
) -> Resolved:
    """Understand a config.json; `source` says where it came from, for messages.

    Raises:
        RefusedConfig: the model type is unknown, a key is unclassified, missing or asks for what
            the circuit cannot express, or the declared quantization is not understood.
    """
    found = library.map_for(config, source)
    shape = resolve_shape(config, found, source)
    declared = declared_precision(config.get("quantization_config"), source)
    circuit = instantiate(library.descriptions[found.arch], shape, declared.precision)
    verify(circuit)
    return Resolved(
        arch=found.arch,
        model_type=str(config["model_type"]),
        circuit=circuit,
        dims=circuit.dims,
        params=circuit.params,
        kv_format=declared.kv_format,
        precision=declared.precision,
        source=source,
    )


def resolve_shape(config: Mapping[str, object], found: ConfigMap, source: str) -> Shape:
    """Layer kinds, dims and params of a config under a map (already of its model type)."""
    reader = _Reader(config, found, source)
    reader.classify(config, found.keys, "", reader.structural_keys())
    params = reader.grouped_params()
    dims = reader.dims()
    for check in found.checks:
        reader.check(check, dims)
    return Shape(reader.layer_kinds(), dims, params)


@dataclass(slots=True)
class _Reader:
    config: Mapping[str, object]
    map: ConfigMap
    source: str
    params: dict[str, object] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def fail(self, message: str) -> RefusedConfig:
        return RefusedConfig(f"{self.source}: {message}")

    def structural_keys(self) -> frozenset[str]:
        """Keys that are read for dims and layers, and the model type."""
        keys = {rule.key for rule in self.map.dims.values() if rule.key}
        return frozenset(
            keys | {"model_type", self.map.layers.count, self.map.layers.list_key or ""}
        )

    def classify(
        self,
        table: Mapping[str, object],
        rules: Mapping[str, KeyRule],
        prefix: str,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        for key in table:
            if key not in rules and key not in elsewhere:
                raise self.fail(
                    f"the key {prefix}{key!r} is not classified by {self.map.source}, so nobody "
                    "has said whether it changes the forward. Remove it, or classify it there "
                    "(ignore, param, require or refuse)"
                )
        for key, rule in rules.items():
            self._apply(key, rule, table, prefix)

    def _apply(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key, rule.default)
        match rule.kind:
            case "refuse" if value is not None and value is not ABSENT:
                stated = "" if key in table else " (absent, which means this default)"
                raise self.fail(f"{prefix}{key} = {json.dumps(value)}{stated}: {rule.why}")
            case "require":
                self._require(key, rule, table, prefix)
            case "param":
                self._carry(key, rule, table, prefix)
            case "object" if isinstance(value, Mapping):
                self.classify(value, rule.inner, f"{prefix}{key}.")
            case "object" if value is not None and value is not ABSENT:
                raise self.fail(f"{prefix}{key} must be an object, it is {json.dumps(value)}")

    def _require(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key)
        value = rule.default if value is None else value
        if value is ABSENT or any(_same(value, wanted) for wanted in rule.required):
            return
        wanted = " or ".join(json.dumps(item) for item in rule.required)
        raise self.fail(
            f"{prefix}{key} = {json.dumps(value)}, and only {wanted} is served: {rule.why}"
        )

    def _carry(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key)
        value = rule.default if value is None else value
        if value is ABSENT:
            if "." in rule.param:
                return  # its group says whether the member may be absent
            raise self.fail(f"the key {prefix}{key} is missing")
        value = rule.values.get(str(value), value)
        known = self.params.setdefault(rule.param, value)
        if not _same(known, value):
            raise self.fail(
                f"{prefix}{key} = {json.dumps(value)} contradicts {self.origins[rule.param]} = "
                f"{json.dumps(known)}; remove one"
            )
        self.origins.setdefault(rule.param, f"{prefix}{key}")

    def grouped_params(self) -> dict[str, str]:
        """Params as JSON text, the members of each group gathered into one object."""
        grouped = {group.name: self._group(group) for group in self.map.groups.values()}
        plain = {name: value for name, value in self.params.items() if "." not in name}
        return {
            name: json.dumps(value, sort_keys=True) for name, value in {**plain, **grouped}.items()
        }

    def _group(self, group: ParamGroup) -> dict[str, object]:
        prefix = f"{group.name}."
        members = {
            name.removeprefix(prefix): value
            for name, value in self.params.items()
            if name.startswith(prefix)
        }
        members = {**group.defaults, **members}
        kind_name = str(members[group.selector])
        if kind_name not in group.kinds:
            origin = self.origins.get(prefix + group.selector, group.selector)
            raise self.fail(
                f"{origin} = {kind_name!r}, and only {', '.join(sorted(group.kinds))} are served: "
                f"{group.why}"
            )
        kind = group.kinds[kind_name]
        for member, key in kind.fallback.items():
            if member not in members and self.config.get(key) is not None:
                members[member] = self.config[key]
        self._check_members(group, kind_name, members)
        return members

    def _check_members(
        self, group: ParamGroup, kind_name: str, members: Mapping[str, object]
    ) -> None:
        kind = group.kinds[kind_name]
        for member in kind.required:
            if member not in members:
                raise self.fail(
                    f"{group.selector} {kind_name!r} needs {member!r}, which is missing"
                )
        known = {*group.always, *kind.required, *kind.optional}
        for member in members:
            if member not in known:
                origin = self.origins.get(f"{group.name}.{member}", member)
                raise self.fail(
                    f"{origin} means nothing to {group.selector} {kind_name!r} here; it takes "
                    f"{', '.join(sorted(known))}"
                )

    def layer_kinds(self) -> tuple[str, ...]:
        rule = self.map.layers
        count = self._integer(rule.count, self.config.get(rule.count), "a positive number")
        listed = self.config.get(rule.list_key) if rule.list_key else None
        if listed is None:
            return (rule.uniform,) * count
        if not isinstance(listed, list) or len(listed) != count:
            raise self.fail(f"{rule.list_key} must list one kind for each of the {count} layers")
        return tuple(self._layer_kind(index, str(item)) for index, item in enumerate(listed))

    def _layer_kind(self, index: int, name: str) -> str:
        rule = self.map.layers
        if name not in rule.values:
            raise self.fail(
                f"{rule.list_key}: layer {index} is {name!r}, and only "
                f"{', '.join(sorted(rule.values))} is served: {rule.why}"
            )
        return rule.values[name]

    def dims(self) -> dict[str, int]:
        dims: dict[str, int] = {}
        for rule in self.map.dims.values():
            dims[rule.name] = self._dim(rule, dims)
        return dims

    def _dim(self, rule: DimRule, dims: Mapping[str, int]) -> int:
        if rule.const is not None:
            return rule.const
        assert rule.key is not None
        value = self.config.get(rule.key)
        if value is None and rule.key not in self.config and rule.default is not None:
            return rule.default
        if value is not None:
            return self._switch(rule.key, value) if rule.is_switch else self._size(rule.key, value)
        if rule.or_dim is not None:
            return dims[rule.or_dim]
        if rule.or_div is not None:
            return dims[rule.or_div[0]] // dims[rule.or_div[1]]
        if rule.default is not None:
            return rule.default
        raise self.fail(f"the key {rule.key!r} is missing; {rule.name} of the circuit needs it")

    def _switch(self, key: str, value: object) -> int:
        if not isinstance(value, bool):
            raise self.fail(f"{key} must be true or false, it is {json.dumps(value)}")
        return int(value)

    def _size(self, key: str, value: object) -> int:
        return self._integer(key, value, "a positive integer")

    def _integer(self, key: str, value: object, wanted: str) -> int:
        if value is None:
            raise self.fail(f"the key {key!r} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fail(f"{key} must be {wanted}, it is {json.dumps(value)}")
        return value

    def check(self, check: SizeCheck, dims: Mapping[str, int]) -> None:
        multiple = check.multiple_of
        divisor = multiple if isinstance(multiple, int) else dims[multiple]
        if dims[check.dim] % divisor:
            raise self.fail(
                f"{check.dim} = {dims[check.dim]} is no multiple of {multiple}"
                f"{'' if isinstance(multiple, int) else f' = {divisor}'}: {check.why}"
            )


def _same(one: object, other: object) -> bool:
    """Equal as JSON: true is not 1, but 1.0 is 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
