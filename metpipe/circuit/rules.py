"""Fusion rules: which kernels run a chain of ops, where, and what that does to the bits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from metpipe.circuit.errors import MissingKernel
from metpipe.circuit.sources import Source

__all__ = ["Element", "Kernel", "Numerics", "Rule", "RuleSet", "RunSelector", "Runtime", "repeats"]

CHUNK = re.compile(r"chunk([1-9][0-9]*)")
REPEATS = ("once", "per_row", "per_row_but_last", "per_run")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of a rule and where its arguments come from."""

    module: str
    func: str
    args: Mapping[str, Source] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """`module.func`."""
        return f"{self.module}.{self.func}"


@dataclass(frozen=True, slots=True)
class Element:
    """One op of a pattern; every field that is set must fit."""

    op: str
    roles: tuple[str, ...] = ()
    format: str | None = None
    """act_quant only: the format it writes"""
    layer_kind: str | None = None
    local: str | None = None
    weight: str | None = None
    """the format of the weight; unstated, any that is not quantised"""
    input: str | None = None
    """the format the kernel reads the first input as"""
    writes: str | None = None
    """the format the outputs are stored in, if not the declared one"""
    keep: bool = False
    """outputs may also be read outside"""
    stored: bool = False
    """outputs stay in memory"""
    sibling: bool = False
    """joins by being in the block of the first element"""
    holds: str | None = None
    """the format handed to later members inside the group"""
    steps: Mapping[str, str] = field(default_factory=dict)
    """where its numeric pipeline departs from the op's"""

    @property
    def text(self) -> str:
        """`linear:q|k`."""
        return f"{self.op}:{'|'.join(self.roles)}" if self.roles else self.op


@dataclass(frozen=True, slots=True)
class Numerics:
    """What the rule does to the bits: the reference itself, the same bits, or other bits."""

    kind: Literal["reference", "bit_identical", "differs"]
    microtest: str | None = None
    lever: str | None = None

    @property
    def text(self) -> str:
        """The class with its qualifier."""
        qualifier = self.microtest or self.lever
        return f"{self.kind}({qualifier})" if qualifier else self.kind


@dataclass(frozen=True, slots=True)
class RunSelector:
    """A launch list for runs of a row table: adjacent sequences with equal K."""

    k: tuple[int, int]
    n: tuple[int, int]
    contiguous: bool | None
    carried: bool | None
    launches: tuple[tuple[Kernel, str], ...]
    """kernel and how often: once, per_seq, per_row, per_seq_row_but_last"""
    copies: str | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A row of FUSIONS.toml."""

    id: str
    pattern: tuple[Element, ...]
    kernels: tuple[Kernel, ...]
    rows: tuple[int, int]
    modes: frozenset[str]
    numerics: Numerics
    priority: int
    cite: str
    source: str
    """the file it stands in"""
    repeat: str = "once"
    copies: str | None = None
    emitter: str | None = None
    requires: frozenset[str] = frozenset()
    when: Mapping[str, str] = field(default_factory=dict)
    runs: tuple[RunSelector, ...] = ()

    @property
    def args(self) -> Mapping[str, Source]:
        """The arguments of its only kernel (or of its first)."""
        return self.kernels[0].args if self.kernels else {}

    @property
    def kernel_names(self) -> frozenset[str]:
        """Every kernel that it may launch."""
        launched = [kernel for run in self.runs for kernel, _ in run.launches]
        return frozenset(kernel.name for kernel in (*self.kernels, *launched))


@dataclass(frozen=True, slots=True)
class Runtime:
    """A condition known only at a step: its other arm is planned with other settings."""

    id: str
    when: str
    modes: frozenset[str]
    rows: tuple[int, int]
    plans_as: Mapping[str, str]
    why: str
    cite: str


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules of a kernel set, by id."""

    source: str
    rules: Mapping[str, Rule]
    runtimes: Mapping[str, Runtime] = field(default_factory=dict)

    def overlay(self, other: RuleSet) -> RuleSet:
        """These rules with the other's added; a rule of the other shadows one of the same id."""
        return RuleSet(
            source=f"{self.source} overlaid by {other.source}",
            rules={**self.rules, **other.rules},
            runtimes={**self.runtimes, **other.runtimes},
        )

    @property
    def levers(self) -> frozenset[str]:
        """Every lever that some rule is behind."""
        found = (rule.numerics.lever for rule in self.rules.values())
        return frozenset(lever for lever in found if lever is not None)

    def widest(self, mode: str) -> int:
        """The most rows that some rule takes in a mode; 0 where none does."""
        return max((rule.rows[1] for rule in self.rules.values() if mode in rule.modes), default=0)

    def of_class(self, *kinds: str) -> frozenset[str]:
        """Ids of the rules of these numerics classes."""
        return frozenset(rule.id for rule in self.rules.values() if rule.numerics.kind in kinds)

    def require_kernels(self, kernels: Iterable[str]) -> None:
        """Refuse a rule that names a kernel which is not among `kernels` (`module.func`).

        Raises:
            MissingKernel: naming the rule, its file and the kernel.
        """
        known = frozenset(kernels)
        for rule in self.rules.values():
            for name in sorted(rule.kernel_names - known):
                raise MissingKernel(
                    f"{rule.source}, rule {rule.id}: there is no kernel {name!r}; write it, or "
                    "correct module and func"
                )


def repeats(repeat: str | None, rows: int) -> int:
    """How often a kernel runs over `rows` rows: once, per_row, per_row_but_last or chunk<n>."""
    match repeat:
        case None:
            return 0
        case "once":
            return 1
        case "per_row":
            return rows
        case "per_row_but_last":
            return rows - 1
    match = CHUNK.fullmatch(repeat)
    assert match, f"the rule parser let the repeat {repeat!r} through"
    return -(-rows // int(match[1]))
