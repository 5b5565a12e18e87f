"""Reads COPIES.toml, schema 1: the rules of derived copies (section 8.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Literal

from pydantic import Field

from metpipe.circuit import parse_format
from metpipe.circuit.vocabulary import LINEAR_ROLES, OPS
from metpipe.errors import ConfigError
from metpipe.memory.met.copies import SETTINGS, CopyRule, check_law
from metpipe.memory.toml_model import Schema1, Strict, parse_model

__all__ = ["parse_copies", "refuse_unknown_archs"]


class _Copy(Strict):
    id: str = Field(min_length=1)
    arch: list[str] = Field(min_length=1)
    ops: list[str] = Field(min_length=1)
    section: Literal["main", "draft"]
    stored: list[str] = Field(default_factory=list)
    served: list[str] = Field(default_factory=list)
    when: dict[str, str] = Field(default_factory=dict)
    law: str
    count: int = Field(gt=0)
    leaked: bool = False
    site: str = Field(min_length=1)


class _Copies(Strict):
    schema_version: Schema1 = Field(alias="schema")
    copies: list[_Copy] = Field(alias="copy")


def parse_copies(text: str, source: str) -> tuple[CopyRule, ...]:
    """The rules in a COPIES.toml text; `source` names it in messages.

    Raises:
        ConfigError: broken TOML, another schema, an unknown or missing key, a value out of its
            range, an id twice, an op that reads no weight, an unknown format, law or setting.
    """
    rows = parse_model(_Copies, text, source).copies
    twice = [name for name, count in Counter(row.id for row in rows).items() if count > 1]
    if twice:
        raise ConfigError(f"{source}: the copy {twice[0]!r} appears more than once")
    return tuple(_rule(row, f"{source}, copy {row.id}") for row in rows)


def refuse_unknown_archs(rules: Iterable[CopyRule], known: Collection[str], source: str) -> None:
    """Refuse a rule of a family that no circuit describes: it would never match.

    Raises:
        ConfigError: naming the first such family.
    """
    for rule in rules:
        if unknown := sorted(set(rule.arch) - set(known)):
            raise ConfigError(
                f"{source}, copy {rule.id}: no circuit has the arch {unknown[0]!r}; there are "
                f"{', '.join(sorted(known))}"
            )


def _rule(row: _Copy, where: str) -> CopyRule:
    for op in row.ops:
        _check_op(op, where)
    for spelling in (*row.stored, *row.served):
        _check_format(spelling, where)
    check_law(row.law, where)
    if unknown := set(row.when) - set(SETTINGS):
        listed = ", ".join(SETTINGS)
        raise ConfigError(f"{where}: when tests {min(unknown)!r}; the settings are {listed}")
    for setting, value in row.when.items():
        if value not in SETTINGS[setting]:
            raise ConfigError(
                f"{where}: when tests {setting} = {value!r}, which never holds; it is one of "
                f"{', '.join(SETTINGS[setting])}"
            )
    return CopyRule(
        id=row.id,
        arch=tuple(row.arch),
        ops=tuple(row.ops),
        section=row.section,
        stored=tuple(row.stored),
        served=tuple(row.served),
        when=row.when,
        law=row.law,
        count=row.count,
        leaked=row.leaked,
        site=row.site,
    )


def _check_op(op: str, where: str) -> None:
    name, colon, role = op.partition(":")
    if name not in OPS or OPS[name].weight != "matrix":
        raise ConfigError(f"{where}: the op {op!r} reads no weight matrix; correct its spelling")
    if name == "linear" and role not in LINEAR_ROLES:
        raise ConfigError(f"{where}: {op!r} names no role of a linear; write linear:<role>")
    if name != "linear" and colon:
        raise ConfigError(f"{where}: the op {name} takes no role, and {op!r} gives one")


def _check_format(spelling: str, where: str) -> None:
    try:
        parse_format(spelling)
    except ConfigError as problem:
        raise ConfigError(f"{where}: {problem}") from None
