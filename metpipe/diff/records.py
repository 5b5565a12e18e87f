"""The small records that stages hand to the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Check", "Control", "ControlVerdict", "Disclosure", "MovedBytes", "VacuousPair"]


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What a forward really ran."""

    forward: str
    plan_digests: Mapping[str, str]
    """Mode and rows that ran, as in "decode 1" -> plan digest; empty where there are no plans."""
    kernel_digests: Mapping[str, str]
    """Kernel that ran -> digest of its source, callees and compile options."""
    graphs: bool


@dataclass(frozen=True, slots=True)
class VacuousPair:
    """Two forwards that were the same program, so their equality says nothing."""

    reference: str
    variant: str
    allowed: bool
    """The variant says that this may be."""
    sentence: str


@dataclass(frozen=True, slots=True)
class Check:
    """One check of the comparer's own test."""

    name: str
    passed: bool
    sentence: str


ControlVerdict = Literal["ok", "blind", "late", "early", "other_row", "lingers", "not_repeatable"]


@dataclass(frozen=True, slots=True)
class Control:
    """A control, judged."""

    name: str
    variant: str
    """The forward it ran under."""
    changed_step: int | None
    """None for a repeat."""
    changed_row: int | None
    first_mismatch: int | None
    verdict: ControlVerdict
    sentence: str
    mode: str = "single"

    def __bool__(self) -> bool:
        return self.verdict == "ok"


@dataclass(frozen=True, slots=True)
class MovedBytes:
    """State that no step of a run owned, and that moved during the run."""

    case: str
    variant: str
    labels: tuple[str, ...]
