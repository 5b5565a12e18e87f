"""Applies a config map to one config.json: every key is classified, carried, checked or refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from metpipe.circuit.config_map import (
    ABSENT,
    ConfigMap,
    DimRule,
    IntervalRule,
    KeyRule,
    LayerRule,
    LayerSource,
    ParamGroup,
    SizeCheck,
)
from metpipe.circuit.errors import RefusedConfig
from metpipe.circuit.template import Shape

__all__ = ["resolve_shape"]


def resolve_shape(config: Mapping[str, object], found: ConfigMap, source: str) -> Shape:
    """Layer kinds, dims and params of a config under the map of its model type.

    Raises:
        RefusedConfig: naming the key, `source`, and what to do.
    """
    if found.nest is not None:
        config, source = _nested(config, found, source)
    reader = _Reader(config, found, source)
    reader.classify(config, found.keys, "", reader.structural_keys())
    params = reader.params_as_text()
    dims = reader.dims()
    for check in found.checks:
        reader.check(check, dims)
    return Shape(reader.layer_kinds(), dims, params)


def _nested(
    config: Mapping[str, object], found: ConfigMap, source: str
) -> tuple[Mapping[str, object], str]:
    """The inner object that holds the keys, the outer ones being classified."""
    assert found.nest is not None
    outer = _Reader(config, found, source)
    passed = {key: rule for key, rule in found.keys.items() if rule.kind == "ignore"}
    outer.classify(config, {**passed, **found.root}, "", frozenset({"model_type", found.nest}))
    inner = config.get(found.nest)
    if not isinstance(inner, Mapping):
        raise outer.fail(f"the key {found.nest!r} is missing, or no object")
    replaced = {
        rule.inner_key: config.get(key, rule.default)
        for key, rule in found.root.items()
        if rule.kind == "inner"
    }
    return {**inner, **replaced}, f"{source}, {found.nest}"


@dataclass(slots=True)
class _Reader:
    config: Mapping[str, object]
    map: ConfigMap
    source: str
    params: dict[str, object] = field(default_factory=dict)
    """param, or `group.member` -> value"""
    origins: dict[str, str] = field(default_factory=dict)
    """param -> the key that gave it"""

    def fail(self, message: str) -> RefusedConfig:
        return RefusedConfig(f"{self.source}: {message}")

    def structural_keys(self) -> frozenset[str]:
        """Keys that are read for dims and layers, and the model type."""
        dims = {rule.key for rule in self.map.dims.values() if rule.key}
        layers = self.map.layers
        listed = {key for one in layers.sources for key in (one.key, one.trailing) if key}
        interval = {layers.interval.key} if layers.interval else set()
        return frozenset(dims | listed | interval | {"model_type", layers.count})

    def classify(
        self,
        table: Mapping[str, object],
        rules: Mapping[str, KeyRule],
        prefix: str,
        elsewhere: frozenset[str] = frozenset(),
    ) -> None:
        """Apply the rules to a table, refusing keys that neither they nor `elsewhere` know."""
        for key in table:
            if key not in rules and key not in elsewhere:
                raise self.fail(
                    f"the key {prefix + key!r} is not classified by {self.map.source}, so nobody "
                    "has said whether it changes the forward. Remove it, or classify it there "
                    "(ignore, param, require or refuse)"
                )
        for key, rule in rules.items():
            self._apply(key, rule, table, prefix)

    def _apply(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key, rule.default)
        match rule.kind:
            case "refuse" if value is not None and value is not ABSENT:
                stated = "" if key in table else " (absent, so it has this default)"
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
            f"{prefix}{key} = {json.dumps(value)}, and only {wanted} is supported: {rule.why}"
        )

    def _carry(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key)
        value = rule.default if value is None else value
        if value is ABSENT:
            if "." in rule.param:
                return  # its group says whether the member may be absent
            raise self.fail(f"the key {prefix + key!r} is missing")
        value = rule.values.get(value, value) if isinstance(value, str) else value
        self._check_kind(f"{prefix}{key}", rule.holds, value)
        known = self.params.setdefault(rule.param, value)
        if not _same(known, value):
            raise self.fail(
                f"{prefix}{key} = {json.dumps(value)} contradicts {self.origins[rule.param]} = "
                f"{json.dumps(known)}; remove one"
            )
        self.origins.setdefault(rule.param, f"{prefix}{key}")

    def _check_kind(self, key: str, holds: str, value: object) -> None:
        if holds == "positive" and not _is_positive(value):
            raise self.fail(f"{key} must be a number above 0, it is {json.dumps(value)}")
        if holds == "bool" and not isinstance(value, bool):
            raise self.fail(f"{key} must be true or false, it is {json.dumps(value)}")

    def params_as_text(self) -> dict[str, str]:
        """Params as JSON text, the members of each group gathered into one object."""
        plain = {name: value for name, value in self.params.items() if "." not in name}
        grouped = {group.name: self._group(group) for group in self.map.groups.values()}
        return {
            name: json.dumps(value, sort_keys=True) for name, value in {**plain, **grouped}.items()
        }

    def _group(self, group: ParamGroup) -> dict[str, object]:
        prefix = f"{group.name}."
        members = dict(group.defaults)
        for name, value in self.params.items():
            if name.startswith(prefix):
                members[name.removeprefix(prefix)] = value
        kind_name = str(members[group.selector])
        if kind_name not in group.kinds:
            origin = self.origins.get(prefix + group.selector, group.selector)
            served = ", ".join(sorted(group.kinds))
            raise self.fail(f"{origin} = {kind_name!r}, and {served} are supported: {group.why}")
        for member, key in group.kinds[kind_name].fallback.items():
            stand_in = self.config.get(key)
            if member not in members and stand_in is not None:
                members[member] = stand_in
        self._check_members(group, kind_name, members)
        return members

    def _check_members(
        self, group: ParamGroup, kind_name: str, members: Mapping[str, object]
    ) -> None:
        kind = group.kinds[kind_name]
        for member in kind.required:
            if member not in members:
                raise self.fail(f"{group.selector} {kind_name!r} needs {member!r}: it is missing")
        known = {*group.always, *kind.required, *kind.optional}
        for member in members:
            if member not in known:
                origin = self.origins.get(f"{group.name}.{member}", member)
                raise self.fail(
                    f"{origin} means nothing to {group.selector} {kind_name!r} here; it takes "
                    f"{', '.join(sorted(known))}"
                )

    def layer_kinds(self) -> tuple[str, ...]:
        """The kind of each layer."""
        rule = self.map.layers
        found = [one for one in rule.sources if self.config.get(one.key) is not None]
        if len(found) > 1:
            raise self.fail(f"{found[0].key} and {found[1].key} both name layer kinds; remove one")
        count = self._layer_count(rule, found)
        if rule.interval is not None:
            return self._interval_kinds(rule.interval, found, count)
        if found:
            return self._listed_kinds(found[0], count)
        if rule.uniform is None:
            keys = " or ".join(one.key for one in rule.sources)
            raise self.fail(f"the key {keys} is missing; it names the kind of each layer")
        return (rule.uniform,) * count

    def _layer_count(self, rule: LayerRule, found: list[LayerSource]) -> int:
        stated = self.config.get(rule.count)
        if stated is None and rule.count_from_list and found:
            return len(self._entries(found[0]))
        return self._size(rule.count, stated)

    def _interval_kinds(
        self, rule: IntervalRule, found: list[LayerSource], count: int
    ) -> tuple[str, ...]:
        """As listed, or by the interval; both may be stated where they agree."""
        stated = self.config.get(rule.key)
        period = rule.default if stated is None else self._size(rule.key, stated)
        kinds = rule.kinds(period, count)
        if not found:
            return kinds
        listed = self._listed_kinds(found[0], count)
        if stated is not None and listed != kinds:
            raise self.fail(f"{found[0].key} contradicts {rule.key} = {stated}; remove one")
        return listed

    def _listed_kinds(self, source: LayerSource, count: int) -> tuple[str, ...]:
        entries = self._entries(source)
        if len(entries) != count:
            raise self.fail(f"{source.key} must list one kind for each of the {count} layers")
        for layer, entry in enumerate(entries):
            if str(entry) not in source.values:
                raise self.fail(
                    f"{source.key}: layer {layer} is {entry!r}, and only "
                    f"{', '.join(sorted(source.values))} is supported: {source.why}"
                )
        return tuple(source.values[str(entry)] for entry in entries)

    def _entries(self, source: LayerSource) -> Sequence[object]:
        """What a source lists for the layers; trailing entries are draft heads."""
        entries = self.config[source.key]
        if not isinstance(entries, list | str):
            raise self.fail(f"{source.key} must list the kind of each layer")
        trailing = self.config.get(source.trailing) if source.trailing else 0
        return entries[: len(entries) - (trailing if isinstance(trailing, int) else 0)]

    def dims(self) -> dict[str, int]:
        """Every dim of the map, in its order; later ones may be derived from earlier ones."""
        dims: dict[str, int] = {}
        for rule in self.map.dims.values():
            dims[rule.name] = self._dim(rule, dims)
        return dims

    def _dim(self, rule: DimRule, dims: Mapping[str, int]) -> int:
        if rule.const is not None:
            return rule.const
        if rule.share is not None:
            return self._part(rule, *rule.share, dims)
        assert rule.key is not None, f"the dim {rule.name} has neither key nor const"
        value = self.config.get(rule.key)
        if rule.is_presence:
            return int(value is not None)
        if value is not None:
            return self._stated(rule, rule.key, value)
        if rule.default is not None and rule.key not in self.config:
            return rule.default
        return self._fallen_back(rule, dims)

    def _part(self, rule: DimRule, dim: str, param: str, dims: Mapping[str, int]) -> int:
        group, _, member = param.partition(".")
        value = self._group(self.map.groups[group])[member] if member else self.params[group]
        if not _is_positive(value) or not isinstance(value, int | float) or value > 1:
            raise self.fail(f"{param} must be above 0 and at most 1, it is {json.dumps(value)}")
        return int(dims[dim] * value)

    def _stated(self, rule: DimRule, key: str, value: object) -> int:
        if rule.may_be_zero and value == 0 and value is not False:
            return 0
        size = self._switch(key, value) if rule.is_switch else self._size(key, value)
        if rule.allowed and size not in rule.allowed:
            served = ", ".join(map(str, rule.allowed))
            raise self.fail(f"{key} = {size}, and only {served} is supported")
        return size

    def _fallen_back(self, rule: DimRule, dims: Mapping[str, int]) -> int:
        if rule.or_dim is not None:
            return dims[rule.or_dim]
        if rule.or_div is not None:
            return dims[rule.or_div[0]] // dims[rule.or_div[1]]
        if rule.default is not None:
            return rule.default
        raise self.fail(f"the key {rule.key!r} is missing; the circuit needs it as {rule.name}")

    def _switch(self, key: str, value: object) -> int:
        if not isinstance(value, bool):
            raise self.fail(f"{key} must be true or false, it is {json.dumps(value)}")
        return int(value)

    def _size(self, key: str, value: object) -> int:
        if value is None:
            raise self.fail(f"the key {key!r} is missing")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.fail(f"{key} must be a positive integer, it is {json.dumps(value)}")
        return value

    def check(self, check: SizeCheck, dims: Mapping[str, int]) -> None:
        """Refuse sizes that do not divide."""
        multiple = check.multiple_of
        divisor = multiple if isinstance(multiple, int) else dims[multiple]
        if dims[check.dim] % divisor:
            named = multiple if isinstance(multiple, int) else f"{multiple} = {divisor}"
            raise self.fail(
                f"{check.dim} = {dims[check.dim]} is no multiple of {named}: {check.why}"
            )


def _is_positive(value: object) -> bool:
    """A finite number above 0; true is none."""
    return isinstance(value, int | float) and value is not True and 0 < value < math.inf


def _same(one: object, other: object) -> bool:
    """Equal as JSON: true is not 1, but 1.0 is 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
