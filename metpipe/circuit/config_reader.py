"""Applies a config map to one config.json: every key is classified, carried, checked or refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit.config_elsewhere import sizes_elsewhere
from metpipe.circuit.config_map import (
    ABSENT,
    ConfigMap,
    KeyRule,
    ParamGroup,
    SizeCheck,
)
from metpipe.circuit.config_sizes import is_positive, layer_kinds, read_dims, sizes_of_class
from metpipe.circuit.errors import RefusedConfig
from metpipe.circuit.template import Shape

__all__ = ["class_sizes", "resolve_shape"]


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
    kinds = layer_kinds(config, found.layers, reader.fail)
    elsewhere = sizes_elsewhere(config, found.dims.values(), kinds, reader.fail)
    merged = {**config, **elsewhere}
    dims = read_dims(merged, found.dims, reader.stated, reader.fail)
    for check in found.checks:
        reader.check(check, dims)
    return Shape(kinds, dims, params)


def class_sizes(config: Mapping[str, object], found: ConfigMap, source: str) -> dict[str, int]:
    """Sizes that a config understood leaves to its class: key -> size."""
    if found.nest is not None:
        config, source = _nested(config, found, source)
    reader = _Reader(config, found, source)
    kinds = layer_kinds(config, found.layers, reader.fail)
    elsewhere = sizes_elsewhere(config, found.dims.values(), kinds, reader.fail)
    return sizes_of_class({**config, **elsewhere}, found.dims.values())


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
        places = [rule.of_kind or rule.leading for rule in self.map.dims.values()]
        dims |= {place.key for place in places if place}
        layers = self.map.layers
        listed = {key for one in layers.sources for key in (one.key, one.trailing) if key}
        interval = {layers.interval.key} if layers.interval and layers.interval.key else set()
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
            case "each" if value is not None and value is not ABSENT:
                self._require_each(key, rule, value, prefix)
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

    def _require_each(self, key: str, rule: KeyRule, value: object, prefix: str) -> None:
        wanted = rule.required[0]
        if not isinstance(value, list) or any(entry != wanted for entry in value):
            raise self.fail(
                f"{prefix}{key} = {json.dumps(value)}, and only a list of {json.dumps(wanted)} is "
                f"supported: {rule.why}"
            )

    def _carry(self, key: str, rule: KeyRule, table: Mapping[str, object], prefix: str) -> None:
        value = table.get(key)
        if rule.is_not_null and key in table and value is None:
            raise self.fail(f"{prefix}{key} must not be null; its absence means {rule.default}")
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
        if holds == "positive" and not is_positive(value):
            raise self.fail(f"{key} must be a number above 0, it is {json.dumps(value)}")
        if holds == "bool" and not isinstance(value, bool):
            raise self.fail(f"{key} must be true or false, it is {json.dumps(value)}")

    def stated(self, param: str) -> tuple[object, bool]:
        """A param's value, or that of a group's member; and whether the config itself states it."""
        group, _, member = param.partition(".")
        if not member:
            return self.params[group], True
        return self._group(self.map.groups[group])[member], param in self.params

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

    def check(self, check: SizeCheck, dims: Mapping[str, int]) -> None:
        """Refuse sizes that do not divide, and one above another (which may be absent, 0)."""
        if check.at_most is not None and 0 < dims[check.at_most] < dims[check.dim]:
            raise self.fail(
                f"{self._spelled(check.dim, dims)} is more than "
                f"{self._spelled(check.at_most, dims)}: {check.why}"
            )
        multiple = check.multiple_of
        if multiple is None:
            return
        divisor = multiple if isinstance(multiple, int) else dims[multiple]
        if dims[check.dim] % divisor:
            named = multiple if isinstance(multiple, int) else f"{multiple} = {divisor}"
            raise self.fail(
                f"{check.dim} = {dims[check.dim]} is no multiple of {named}: {check.why}"
            )

    def _spelled(self, dim: str, dims: Mapping[str, int]) -> str:
        """A dim by the key that states it."""
        return f"{self.map.dims[dim].key or dim} = {dims[dim]}"


def _same(one: object, other: object) -> bool:
    """Equal as JSON: true is not 1, but 1.0 is 1."""
    return isinstance(one, bool) == isinstance(other, bool) and one == other
