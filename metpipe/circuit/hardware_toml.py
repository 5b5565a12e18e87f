"""Reads HARDWARE.toml, schema 1: the class of hardware that a kernel set is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit.formats import parse_format
from metpipe.circuit.strict import Table, read_toml

__all__ = ["Hardware", "parse_hardware"]

KINDS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a set says of its hardware; `capabilities` and `settings` are what rules may ask for."""

    name: str
    hardware_class: str
    kind: str
    block_size: int
    """tokens of a KV block, where nothing else says"""
    capabilities: frozenset[str]
    settings: Mapping[str, str]
    compute_capabilities: frozenset[str] = frozenset()
    """of a GPU: `major.minor` of the devices that the set is proven on"""
    inherits: str | None = None
    """the set beside it whose rules and kernels it takes as they are"""


def parse_hardware(text: str, source: str) -> Hardware:
    """Read a set's table; `source` names its file in messages.

    Raises:
        ConfigError: a key is unknown, missing, of another type or out of its range.
    """
    with read_toml(text, source) as root:
        root.schema(1)
        kind = root.choice("kind", KINDS)
        _check_the_rest(root)
        return Hardware(
            name=root.text("name"),
            hardware_class=root.text("class"),
            kind=kind,
            block_size=_positive(root, "block_size"),
            capabilities=frozenset(root.texts("capabilities", ())),
            settings=root.text_map("settings"),
            compute_capabilities=frozenset(root.texts("compute_capabilities", ())),
            inherits=root.optional_text("inherits"),
        )


def _check_the_rest(root: Table) -> None:
    """What is written for people, and for classes that have no kernels of their own."""
    root.text("description", "")
    root.optional_text("plans_with")
    for spelling in root.texts("formats"):
        parse_format(spelling)
    with root.table("memory") as memory:
        memory.boolean("unified")
        _positive(memory, "line_bytes")


def _positive(table: Table, key: str) -> int:
    value = table.integer(key)
    if value < 1:
        raise table.fail(f"{key} = {value} must be at least 1")
    return value
