"""Reads `<arch>.config.toml`, schema 1."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.circuit.config_map import (
    ABSENT,
    ConfigMap,
    DimRule,
    GroupKind,
    Inside,
    IntervalRule,
    KeyRule,
    LayerRule,
    LayerSource,
    Leading,
    OfKind,
    ParamGroup,
    SizeCheck,
    Variant,
)
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.strict import Table, read_toml

__all__ = ["parse_config_map"]

MERGED = ("root", "dims", "keys", "group", "check")
"""Tables that an included library may hold."""


def parse_config_map(
    text: str, source: str, libraries: Mapping[str, str] | None = None
) -> ConfigMap:
    """Read a map; `source` names its file, `libraries` what it may include (name -> TOML text).

    Raises:
        BadCircuit: a key of the file is unknown, missing or of another type, a library is missing,
            or classifies what another one or the map classifies.
    """
    with _with_libraries(read_toml(text, source, BadCircuit), libraries or {}) as root:
        root.schema(1)
        return ConfigMap(
            source=source,
            arch=root.text("arch"),
            model_types=root.texts("model_types"),
            nest=root.optional_text("nest"),
            root=_keys(root.table("root")),
            layers=_layers(root),
            dims=_dims(root.table("dims")),
            keys=_keys(root.table("keys")),
            groups={name: _group(name, t) for name, t in root.subtables("group").items()},
            checks=tuple(_check(table) for table in root.tables("check")),
            variants={name: _variant(t) for name, t in root.subtables("variant").items()},
        )


def _with_libraries(root: Table, libraries: Mapping[str, str]) -> Table:
    """The root table with the entries of every included library in front of its own."""
    merged: dict[str, object] = {}
    parts = [(name, _library(root, name, libraries)) for name in root.texts("include", ())]
    for name, raw in (*parts, (root.where, root.raw)):
        for key, value in raw.items():
            if key in MERGED and key in merged:
                merged[key] = _joined(root, name, key, merged[key], value)
            else:
                merged[key] = value
    merged.pop("include", None)
    return Table(merged, root.where, root.error)


def _library(root: Table, name: str, libraries: Mapping[str, str]) -> dict[str, object]:
    if name not in libraries:
        raise root.fail(f"it includes {name!r}, and there is no keys/{name}.toml")
    with read_toml(libraries[name], f"keys/{name}.toml", BadCircuit) as library:
        library.schema(1)
        return {key: library.value(key) for key in MERGED if library.has(key)}


def _joined(root: Table, name: str, key: str, one: object, other: object) -> object:
    if isinstance(one, list) and isinstance(other, list):
        return [*one, *other]
    if not isinstance(one, dict) or not isinstance(other, dict):
        raise root.fail(f"{name} writes {key} as another type than a library before it")
    if twice := sorted(set(one) & set(other)):
        raise root.fail(f"{name} has {key}.{twice[0]}, which a library before it has already")
    return {**one, **other}


def _layers(root: Table) -> LayerRule:
    with root.table("layers") as table:
        return LayerRule(
            count=table.text("count"),
            uniform=table.optional_text("uniform"),
            sources=tuple(_layer_source(source) for source in table.tables("source")),
            interval=_interval(table) if table.has("interval") else None,
            last=table.optional_text("last"),
            count_from_list=table.boolean("count_from_list", False),
        )


def _interval(layers: Table) -> IntervalRule:
    with layers.table("interval") as table:
        return IntervalRule(
            key=table.optional_text("key"),
            default=table.integer("default"),
            last=table.text("last"),
            others=table.text("others"),
        )


def _layer_source(table: Table) -> LayerSource:
    with table:
        return LayerSource(
            key=table.text("key"),
            values=table.text_map("values"),
            why=table.text("why"),
            trailing=table.optional_text("trailing"),
        )


def _variant(table: Table) -> Variant:
    with table:
        return Variant(
            dims=_dims(table.table("dims")),
            keys=_keys(table.table("keys")),
            is_flat=table.boolean("flat", False),
        )


def _dims(table: Table) -> dict[str, DimRule]:
    return {name: _dim(name, table) for name in table.raw}


def _dim(name: str, dims: Table) -> DimRule:
    if isinstance(dims.value(name), str):
        return DimRule(name, dims.text(name))
    with dims.table(name) as table:
        or_div = table.texts("or_div", ())
        if len(or_div) not in (0, 2):
            raise table.fail("or_div must name two dims")
        return DimRule(
            name=name,
            key=table.optional_text("key"),
            is_switch=table.boolean("bool", False),
            is_presence=table.boolean("present", False),
            allowed=_sizes(table),
            const=table.integer("const") if table.has("const") else None,
            default=table.integer("default") if table.has("default") else None,
            or_dim=table.optional_text("or_dim"),
            or_div=(or_div[0], or_div[1]) if or_div else None,
            share=_share(table),
            may_be_zero=table.boolean("zero", False),
            of_kind=_of_kind(table) if table.has("of_kind") else None,
            leading=_leading(table) if table.has("leading") else None,
            inside=_inside(table) if table.has("inside") else None,
        )


def _inside(dim: Table) -> Inside:
    with dim.table("inside") as table:
        return Inside(table.text("key"), table.text("member"))


def _leading(dim: Table) -> Leading:
    with dim.table("leading") as table:
        return Leading(table.text("key"), table.text("entry"), table.text("rest"))


def _of_kind(dim: Table) -> OfKind:
    with dim.table("of_kind") as table:
        return OfKind(table.text("key"), table.text("kind"), table.text("member"))


def _share(table: Table) -> tuple[str, str] | None:
    named = table.texts("share", ())
    if len(named) not in (0, 2):
        raise table.fail("share must name a dim and a param")
    return (named[0], named[1]) if named else None


def _sizes(table: Table) -> tuple[int, ...]:
    value = table.value("allowed", [])
    if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
        raise table.fail(f"allowed must be a list of numbers, it is {value!r}")
    return tuple(value)


def _keys(table: Table) -> dict[str, KeyRule]:
    rules = {name: _key(name, table) for name in table.raw if not _is_alias(table, name)}
    for name in table.raw:
        if _is_alias(table, name):
            with table.table(name) as alias:
                like = alias.text("like")
                if like not in rules:
                    raise alias.fail(f"there is no key {like!r} to be like")
                rules[name] = rules[like]
    return rules


def _is_alias(table: Table, name: str) -> bool:
    value = table.value(name)
    return isinstance(value, dict) and "like" in value


def _key(name: str, keys: Table) -> KeyRule:
    raw = keys.value(name)
    if raw == "ignore":
        return KeyRule("ignore")
    if raw == "param":
        return KeyRule("param", param=name)
    with keys.table(name) as table:
        default = table.value("default", ABSENT)
        if table.has("ignore"):
            return KeyRule("ignore", why=table.text("ignore"))
        if table.has("refuse"):
            return KeyRule("refuse", why=table.text("refuse"), default=default)
        if table.has("param"):
            values = table.table("values").raw
            return KeyRule(
                "param",
                param=table.text("param"),
                default=default,
                values=values,
                holds=_holds(table),
                is_not_null=table.boolean("not_null", False),
            )
        if table.has("each"):
            return KeyRule("each", why=table.text("why"), required=(table.text("each"),))
        if table.has("inner"):
            return KeyRule("inner", inner_key=table.text("inner"), default=default)
        if table.has("object"):
            return KeyRule("object", inner=_keys(table.table("object")))
        required = table.value("require")
        listed = tuple(required) if isinstance(required, list) else (required,)
        return KeyRule("require", why=table.text("why"), required=listed, default=default)


def _holds(table: Table) -> str:
    asked = [name for name in ("positive", "bool") if table.boolean(name, False)]
    if len(asked) > 1:
        raise table.fail("positive and bool contradict each other")
    return asked[0] if asked else ""


def _group(name: str, table: Table) -> ParamGroup:
    with table:
        return ParamGroup(
            name=name,
            selector=table.text("selector"),
            always=table.texts("always"),
            defaults=table.table("defaults").raw,
            kinds={kind: _group_kind(inner) for kind, inner in table.subtables("kinds").items()},
            why=table.text("why"),
        )


def _group_kind(table: Table) -> GroupKind:
    with table:
        return GroupKind(
            required=table.texts("required", ()),
            optional=table.texts("optional", ()),
            fallback=table.text_map("fallback"),
        )


def _check(table: Table) -> SizeCheck:
    with table:
        most = table.optional_text("at_most")
        multiple = table.value("multiple_of", None) if most else table.value("multiple_of")
        if not (isinstance(multiple, str | int) or (most and multiple is None)):
            raise table.fail("multiple_of must be a dim or a number")
        return SizeCheck(table.text("dim"), multiple, table.text("why"), most)
