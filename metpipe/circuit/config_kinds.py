"""Sizes that a config states per layer: one number where all layers of a kind agree on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from metpipe.circuit.config_map import DimRule, OfKind

__all__ = ["kind_sizes"]


def kind_sizes(
    config: Mapping[str, object],
    rules: Iterable[DimRule],
    kinds: Sequence[str],
    fail: Callable[[str], Exception],
) -> dict[str, object]:
    """Key of each dim that is stated per layer -> its value; `fail` makes the error for a message.

    An object `{"5": {"head_dim": 512}}` names layers by number. Where it is stated, every layer of
    the dim's kind has the member, with one value, and no other layer is named.
    """
    found: dict[str, object] = {}
    members: dict[str, set[str]] = {}
    for rule in rules:
        if rule.of_kind is None or config.get(rule.of_kind.key) is None:
            continue
        if rule.key is None or config.get(rule.key) is not None:
            raise fail(f"{rule.key} and {rule.of_kind.key} both state {rule.name}; remove one")
        layers = _layers(config, rule.of_kind.key, fail)
        value = _value(layers, rule.of_kind, kinds, fail)
        if value is None and rule.or_dim is None:
            raise fail(f"{rule.of_kind.key}: its layers do not state {rule.of_kind.member}")
        found[rule.key] = value
        members.setdefault(rule.of_kind.key, set()).add(rule.of_kind.member)
    for key, known in members.items():
        _refuse_others(_layers(config, key, fail), key, known, fail)
    return found


def _layers(
    config: Mapping[str, object], key: str, fail: Callable[[str], Exception]
) -> dict[str, Mapping[str, object]]:
    table = config[key]
    if not isinstance(table, Mapping) or not all(isinstance(v, Mapping) for v in table.values()):
        raise fail(f"{key} must be an object of layer numbers and their sizes")
    return dict(table)


def _value(
    layers: Mapping[str, Mapping[str, object]],
    place: OfKind,
    kinds: Sequence[str],
    fail: Callable[[str], Exception],
) -> object:
    wanted = {str(layer) for layer, kind in enumerate(kinds) if kind == place.kind}
    if set(layers) != wanted:
        odd = min(set(layers) ^ wanted, key=str)
        named = f"{place.key} must name the layers of kind {place.kind} and no other"
        raise fail(f"{named}: layer {odd}")
    values = {json.dumps(layer.get(place.member)) for layer in layers.values()}
    if len(values) > 1:
        raise fail(f"{place.key}: the layers differ in {place.member}, and one size is supported")
    return json.loads(values.pop()) if values else None


def _refuse_others(
    layers: Mapping[str, Mapping[str, object]],
    key: str,
    known: set[str],
    fail: Callable[[str], Exception],
) -> None:
    for layer, sizes in layers.items():
        for name in sizes:
            if name not in known:
                raise fail(f"the key '{key}.{layer}.{name}' is not classified")
