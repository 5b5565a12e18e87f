"""What planning needs of a kernel set: rules, kernels' names, and the families' workspaces."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from metpipe.circuit import RuleSet, parse_expr, parse_hardware, read_rules
from metpipe.errors import ConfigError
from metpipe.memory.toml_model import Schema1, Strict, parse_model

__all__ = ["Family", "KernelSet", "Workspace", "parse_families", "read_kernel_set"]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A scratch buffer: as many bytes as the largest of its expressions, divisions rounded up.

    `in_arena` says that an engine with a legacy arena has it in there; `source` is the file.
    """

    name: str
    expressions: tuple[str, ...]
    in_arena: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True)
class Family:
    """Kernels ("module.func") that share workspaces."""

    name: str
    kernels: frozenset[str]
    workspaces: tuple[Workspace, ...]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """A folder of kernels as a planner sees it; `kernels` are the functions of its files.

    `capabilities` and `settings` are what a rule's `requires` and `when` may ask for.
    """

    name: str
    device_class: str
    capabilities: frozenset[str]
    settings: Mapping[str, str]
    rules: RuleSet
    kernels: frozenset[str]
    families: tuple[Family, ...]


class _Workspace(Strict):
    name: str
    bytes: list[str] = Field(min_length=1)
    arena: bool = False
    why: str = ""


class _Family(Strict):
    name: str
    kernels: list[str] = Field(min_length=1)
    why: str = ""
    workspace: list[_Workspace] = Field(default_factory=list)


class _Families(Strict):
    schema_version: Schema1 = Field(alias="schema")
    family: list[_Family] = Field(default_factory=list)


def parse_families(text: str, source: str) -> tuple[Family, ...]:
    """The families in a FAMILIES.toml text; `source` names it in messages.

    Raises:
        ConfigError: broken TOML, an unknown key, a text that is no byte expression, a name twice.
    """
    rows = parse_model(_Families, text, source).family
    names = [row.name for row in rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"{source}: the family {min(twice)!r} appears more than once")
    return tuple(_family(row, source) for row in rows)


def read_kernel_set(folder: Path) -> KernelSet:
    """The kernel set in `folder`, without importing its code.

    Raises:
        ConfigError: a file that is missing or breaks its schema.
    """
    about = folder / "HARDWARE.toml"
    hardware = parse_hardware(_text(about), str(about))
    folder = folder if hardware.inherits is None else folder.parent / hardware.inherits
    families = folder / "FAMILIES.toml"
    rules, kernels = read_rules(folder), _defined_kernels(folder)
    rules.require_kernels(kernels)
    return KernelSet(
        name=hardware.name,
        device_class=hardware.hardware_class,
        capabilities=hardware.capabilities,
        settings=hardware.settings,
        rules=rules,
        kernels=kernels,
        families=parse_families(_text(families), str(families)),
    )


def _family(row: _Family, source: str) -> Family:
    for workspace in row.workspace:
        for expression in workspace.bytes:
            parse_expr(expression, f"{source}: {row.name}.{workspace.name}")
    workspaces = tuple(
        Workspace(entry.name, tuple(entry.bytes), entry.arena, source) for entry in row.workspace
    )
    return Family(row.name, frozenset(row.kernels), workspaces)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot read the kernel set: {error}") from None


def _defined_kernels(folder: Path) -> frozenset[str]:
    """`module.func` of each public function at the top of the folder's files."""
    return frozenset(
        f"{path.stem}.{item.name}"
        for path in sorted(folder.glob("*.py"))
        for item in ast.parse(_text(path)).body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
    )
