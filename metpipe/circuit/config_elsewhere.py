"""Sizes that a config states elsewhere than under a dim's own key: layer by layer, in an object.

Where both places state a size they must agree.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from metpipe.circuit.config_map import DimRule, Inside, Leading, OfKind

__all__ = ["sizes_elsewhere"]

Config = Mapping[str, object]
Fail = Callable[[str], Exception]


def sizes_elsewhere(
    config: Config, rules: Iterable[DimRule], kinds: Sequence[str], fail: Fail
) -> dict[str, object]:
    """Key of each dim that is stated elsewhere -> its value; `fail` makes a message's error."""
    found: dict[str, object] = {}
    members: dict[str, set[str]] = {}
    for rule in rules:
        place = rule.of_kind or rule.leading or rule.inside
        if place is None or config.get(place.key) is None:
            continue
        if isinstance(place, OfKind):
            members.setdefault(place.key, set()).add(place.member)
        value = _value(config, rule, place, kinds, fail)
        own = None if rule.key is None else config.get(rule.key)
        if value is not None and own is not None and own != value:
            raise fail(
                f"{rule.key} = {json.dumps(own)} contradicts {place.key}, which says {value}"
            )
        if rule.key is not None and own is None:
            found[rule.key] = value
    for key, known in members.items():
        _refuse_others(config, key, known, fail)
    return found


def _value(
    config: Config,
    rule: DimRule,
    place: OfKind | Leading | Inside,
    kinds: Sequence[str],
    fail: Fail,
) -> object:
    match place:
        case OfKind():
            value = _of_kind(config, place, kinds, fail)
            if value is None and rule.or_dim is None:
                raise fail(f"{place.key}: its layers do not state {place.member}")
            return value
        case Leading():
            return _leading(config, place, fail)
        case Inside():
            table = config[place.key]
            return table.get(place.member) if isinstance(table, Mapping) else None


def _of_kind(config: Config, place: OfKind, kinds: Sequence[str], fail: Fail) -> object:
    """An object `{"5": {"head_dim": 512}}` names layers by number.

    Every layer of the kind has the member, with one value, and no other layer is named.
    """
    layers = _layers(config, place.key, fail)
    wanted = {str(layer) for layer, kind in enumerate(kinds) if kind == place.kind}
    if set(layers) != wanted:
        odd = min(set(layers) ^ wanted, key=str)
        named = f"{place.key} must name the layers of kind {place.kind} and no other"
        raise fail(f"{named}: layer {odd}")
    values = {json.dumps(layer.get(place.member)) for layer in layers.values()}
    if len(values) > 1:
        raise fail(f"{place.key}: the layers differ in {place.member}, and one size is supported")
    return json.loads(values.pop()) if values else None


def _layers(config: Config, key: str, fail: Fail) -> dict[str, Mapping[str, object]]:
    table = config[key]
    if not isinstance(table, Mapping) or not all(isinstance(v, Mapping) for v in table.values()):
        raise fail(f"{key} must be an object of layer numbers and their sizes")
    return dict(table)


def _refuse_others(config: Config, key: str, known: set[str], fail: Fail) -> None:
    for layer, sizes in _layers(config, key, fail).items():
        for name in sizes:
            if name not in known:
                raise fail(f"the key '{key}.{layer}.{name}' is not classified")


def _leading(config: Config, place: Leading, fail: Fail) -> int:
    """How many entries at the start of a list are `entry`, the others all being `rest`."""
    entries = config[place.key]
    if not isinstance(entries, list):
        raise fail(f"{place.key} must list an entry for each layer")
    count = entries.count(place.entry)
    if entries != [place.entry] * count + [place.rest] * (len(entries) - count):
        raise fail(f"{place.key} must be {place.entry} for the first layers, then {place.rest}")
    return count
