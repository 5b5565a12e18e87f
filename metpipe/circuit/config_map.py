"""Reads `<arch>.config.toml`: how the keys of a Hugging Face config.json become dims and params.

Every key of a config is classified here; `resolve` refuses the others by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.strict import Table, read_toml

__all__ = ["ConfigMap", "DimRule", "GroupKind", "KeyRule", "LayerRule", "ParamGroup", "SizeCheck"]

ABSENT = object()
"""The map states no default."""


@dataclass(frozen=True, slots=True)
class DimRule:
    """Where a dim comes from. null: or_dim, or_div; absent: default, or as null without one."""

    name: str
    key: str | None
    is_switch: bool = False
    """the key holds true or false"""
    const: int | None = None
    default: int | None = None
    or_dim: str | None = None
    or_div: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What is done with a key: ignore, param, require, refuse or object."""

    kind: str
    why: str = ""
    param: str = ""
    """param: its name; `group.member` joins a group"""
    required: tuple[object, ...] = ()
    default: object = ABSENT
    """the value of the Hugging Face class when the key is absent"""
    values: Mapping[str, object] = field(default_factory=dict)
    """param: renames of values"""
    inner: Mapping[str, KeyRule] = field(default_factory=dict)
    """object: its keys"""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """The members that one kind of a group must and may have."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    fallback: Mapping[str, str]
    """member -> the top-level config key that stands in for it"""


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """Members gathered into one JSON object; the member `selector` says which kind it is."""

    name: str
    selector: str
    always: tuple[str, ...]
    defaults: Mapping[str, object]
    kinds: Mapping[str, GroupKind]
    why: str


@dataclass(frozen=True, slots=True)
class LayerRule:
    """How many layers, and of which kinds."""

    count: str
    uniform: str
    list_key: str | None
    values: Mapping[str, str]
    why: str


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """A dim must be a multiple of another dim or of a number."""

    dim: str
    multiple_of: str | int
    why: str


@dataclass(frozen=True, slots=True)
class ConfigMap:
    """One architecture's map; `for_model_type` applies a variant's replacements."""

    source: str
    arch: str
    model_types: tuple[str, ...]
    layers: LayerRule
    dims: Mapping[str, DimRule]
    keys: Mapping[str, KeyRule]
    groups: Mapping[str, ParamGroup]
    checks: tuple[SizeCheck, ...]
    variants: Mapping[str, tuple[Mapping[str, DimRule], Mapping[str, KeyRule]]]

    def for_model_type(self, model_type: str) -> ConfigMap:
        """This map with the replacements of the model type's variant, if it has one."""
        dims, keys = self.variants.get(model_type, ({}, {}))
        return replace(self, dims={**self.dims, **dims}, keys={**self.keys, **keys})

    @classmethod
    def parse(cls, text: str, source: str) -> ConfigMap:
        """Read a map.

        Raises:
            BadCircuit: a key of the file is unknown, missing or of another type.
        """
        with read_toml(text, source, BadCircuit) as root:
            if root.integer("schema") != 1:
                raise root.fail("only schema 1 is known")
            return cls(
                source=source,
                arch=root.text("arch"),
                model_types=root.texts("model_types"),
                layers=_layers(root),
                dims=_dims(root.table("dims")),
                keys=_keys(root.table("keys")),
                groups={name: _group(name, t) for name, t in root.subtables("group").items()},
                checks=tuple(_check(table) for table in root.tables("check")),
                variants={name: _variant(t) for name, t in root.subtables("variant").items()},
            )


def _layers(root: Table) -> LayerRule:
    with root.table("layers") as table:
        return LayerRule(
            count=table.text("count"),
            uniform=table.text("uniform"),
            list_key=table.optional_text("list"),
            values=table.text_map("values"),
            why=table.text("why", ""),
        )


def _variant(table: Table) -> tuple[dict[str, DimRule], dict[str, KeyRule]]:
    with table:
        return _dims(table.table("dims")), _keys(table.table("keys"))


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
            const=table.integer("const") if table.has("const") else None,
            default=table.integer("default") if table.has("default") else None,
            or_dim=table.optional_text("or_dim"),
            or_div=(or_div[0], or_div[1]) if or_div else None,
        )


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
            return KeyRule("param", param=table.text("param"), default=default, values=values)
        if table.has("object"):
            return KeyRule("object", inner=_keys(table.table("object")))
        required = table.value("require")
        listed = tuple(required) if isinstance(required, list) else (required,)
        return KeyRule("require", why=table.text("why"), required=listed, default=default)


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
        multiple = table.value("multiple_of")
        if not isinstance(multiple, str | int):
            raise table.fail("multiple_of must be a dim or a number")
        return SizeCheck(table.text("dim"), multiple, table.text("why"))
