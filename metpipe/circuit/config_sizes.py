"""The sizes of a config.json: the kind of each layer, and every dim of a map."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from metpipe.circuit.config_map import DimRule, IntervalRule, LayerRule, LayerSource

__all__ = ["is_positive", "layer_kinds", "read_dims", "sizes_of_class"]

MOST = 2**31 - 1
LAYERS = 10_000
"""Far above any model; a digit too many must not make them."""
Config = Mapping[str, object]
Fail = Callable[[str], Exception]
"""Makes the error that says where the config came from."""
Stated = Callable[[str], tuple[object, bool]]
"""A param's value, and whether the config states it or it is a default."""


def layer_kinds(config: Config, rule: LayerRule, fail: Fail) -> tuple[str, ...]:
    """The kind of each layer."""
    found = [one for one in rule.sources if config.get(one.key) is not None]
    if len(found) > 1:
        raise fail(f"{found[0].key} and {found[1].key} both name layer kinds; remove one")
    count = _layer_count(config, rule, found, fail)
    if rule.interval is not None:
        return _interval_kinds(config, rule.interval, found, count, fail)
    if found:
        return _listed_kinds(config, found[0], count, fail, rule.last)
    if rule.uniform is None:
        keys = " or ".join(one.key for one in rule.sources)
        raise fail(f"the key {keys} is missing; it names the kind of each layer")
    return (rule.uniform,) * count


def _layer_count(config: Config, rule: LayerRule, found: list[LayerSource], fail: Fail) -> int:
    stated = config.get(rule.count)
    if stated is None and rule.count_from_list and found:
        return len(_entries(config, found[0], fail))
    count = _size(rule.count, stated, fail)
    if count > LAYERS:
        raise fail(f"{rule.count} = {count} is more than {LAYERS} layers; correct it")
    return count


def _interval_kinds(
    config: Config, rule: IntervalRule, found: list[LayerSource], count: int, fail: Fail
) -> tuple[str, ...]:
    """As listed, or by the interval; both may be stated where they agree."""
    stated = None if rule.key is None else config.get(rule.key)
    period = rule.default if stated is None else _size(str(rule.key), stated, fail)
    kinds = rule.kinds(period, count)
    if not found:
        return kinds
    listed = _listed_kinds(config, found[0], count, fail)
    if stated is not None and listed != kinds:
        raise fail(f"{found[0].key} contradicts {rule.key} = {stated}; remove one")
    return listed


def _listed_kinds(
    config: Config, source: LayerSource, count: int, fail: Fail, last: str | None = None
) -> tuple[str, ...]:
    entries = _entries(config, source, fail)
    if len(entries) != count:
        raise fail(f"{source.key} must list one kind for each of the {count} layers")
    for layer, entry in enumerate(entries):
        if str(entry) not in source.values:
            raise fail(
                f"{source.key}: layer {layer} is {entry!r}, and only "
                f"{', '.join(sorted(source.values))} is supported: {source.why}"
            )
    kinds = tuple(source.values[str(entry)] for entry in entries)
    if last is not None and kinds[-1] != last:
        raise fail(f"{source.key}: the last layer must be {last}, it is {kinds[-1]}")
    return kinds


def _entries(config: Config, source: LayerSource, fail: Fail) -> Sequence[object]:
    """What a source lists for the layers; trailing entries are draft heads."""
    entries = config[source.key]
    if not isinstance(entries, list | str):
        raise fail(f"{source.key} must list the kind of each layer")
    trailing = config.get(source.trailing) if source.trailing else 0
    return entries[: len(entries) - (trailing if isinstance(trailing, int) else 0)]


def read_dims(
    config: Config, rules: Mapping[str, DimRule], stated: Stated, fail: Fail
) -> dict[str, int]:
    """Every dim of the map, in its order; later ones may be derived from earlier ones."""
    dims: dict[str, int] = {}
    for rule in rules.values():
        dims[rule.name] = _dim(config, rule, dims, stated, fail)
    return dims


def sizes_of_class(config: Config, rules: Iterable[DimRule]) -> dict[str, int]:
    """Key -> the size that the model's class gives where the config has no such key.

    Switches, and sizes that are then 0 or follow another one, are none of these.
    """
    return {
        rule.key: rule.default
        for rule in rules
        if rule.key is not None
        and rule.key not in config
        and rule.default
        and not (rule.is_switch or rule.is_presence or rule.share)
    }


def _dim(config: Config, rule: DimRule, dims: Mapping[str, int], stated: Stated, fail: Fail) -> int:
    if rule.const is not None:
        return rule.const
    value = config.get(rule.key) if rule.key is not None else None
    if rule.is_presence:
        return int(value is not None)
    size = None if value is None else _stated_size(rule, str(rule.key), value, fail)
    if rule.share is not None:
        return _part(rule, size, dims, stated, fail)
    assert rule.key is not None, f"the dim {rule.name} has neither key nor const"
    if size is not None:
        return size
    if rule.default is not None and rule.key not in config:
        return rule.default
    return _fallen_back(rule, dims, fail)


def _part(
    rule: DimRule, size: int | None, dims: Mapping[str, int], stated: Stated, fail: Fail
) -> int:
    """A share of another dim; where a key states the size as well, both must say the same."""
    assert rule.share is not None
    dim, param = rule.share
    value, is_stated = stated(param)
    if not is_positive(value) or not isinstance(value, int | float) or value > 1:
        raise fail(f"{param} must be above 0 and at most 1, it is {json.dumps(value)}")
    part = int(dims[dim] * value)
    if size is not None and is_stated and size != part:
        raise fail(f"{rule.key} = {size} contradicts {param} = {value} of {dims[dim]}; remove one")
    return part if size is None else size


def _stated_size(rule: DimRule, key: str, value: object, fail: Fail) -> int:
    if rule.may_be_zero and value == 0 and value is not False:
        return 0
    size = _switch(key, value, fail) if rule.is_switch else _size(key, value, fail)
    if rule.allowed and size not in rule.allowed:
        served = ", ".join(map(str, rule.allowed))
        raise fail(f"{key} = {size}, and only {served} is supported")
    return size


def _fallen_back(rule: DimRule, dims: Mapping[str, int], fail: Fail) -> int:
    if rule.or_dim is not None:
        return dims[rule.or_dim]
    if rule.or_div is not None:
        return dims[rule.or_div[0]] // dims[rule.or_div[1]]
    if rule.default is not None:
        return rule.default
    raise fail(f"the key {rule.key!r} is missing; the circuit needs it as {rule.name}")


def _switch(key: str, value: object, fail: Fail) -> int:
    if not isinstance(value, bool):
        raise fail(f"{key} must be true or false, it is {json.dumps(value)}")
    return int(value)


def _size(key: str, value: object, fail: Fail) -> int:
    if value is None:
        raise fail(f"the key {key!r} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise fail(f"{key} must be a positive integer, it is {json.dumps(value)}")
    if value > MOST:
        raise fail(f"{key} = {value} is more than {MOST}, the most that an i32 counts; correct it")
    return value


def is_positive(value: object) -> bool:
    """A finite number above 0; true is none."""
    return isinstance(value, int | float) and value is not True and 0 < value < math.inf
