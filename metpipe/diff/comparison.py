"""What the comparison of one run with the reference found: facts, and a truth value."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.diff.severity import Severity, worst

__all__ = ["Comparison", "Difference", "StateDifference"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One step that differs, or the prefill."""

    step: int | None
    """None for the prefill."""
    unequal_bytes: int | None
    """None while only the digests are known to differ."""
    first_byte: int | None
    rows: tuple[int, ...]
    note: str | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class StateDifference:
    """A step after which state that sequences own differs."""

    step: int
    sequences: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run against the reference; true when nothing that was compared differs."""

    variant: str
    steps: int
    """Compared steps."""
    step_rows: int
    """Compared rows, over all steps."""
    prefill: Difference | None
    differences: tuple[Difference, ...]
    """Of the steps, in their order."""
    num_states: int = 0
    """Compared state digests."""
    state_diff: tuple[str, ...] = ()
    """Labels of the states that differ at the end, or that one side lacks."""
    state_steps: tuple[StateDifference, ...] = ()
    """Steps after which what they wrote differs."""

    def __bool__(self) -> bool:
        states = self.state_diff or self.state_steps
        return self.prefill is None and not self.differences and not states

    @property
    def prefill_equal(self) -> bool:
        return self.prefill is None

    @property
    def prefill_first_diff(self) -> int | None:
        """Offset of the first unequal byte of the prefill."""
        return None if self.prefill is None else self.prefill.first_byte

    @property
    def mismatched_steps(self) -> int:
        return len(self.differences)

    @property
    def first_mismatch(self) -> int | None:
        """The first step that differs."""
        return self.differences[0].step if self.differences else None

    @property
    def max_mismatched_bytes(self) -> int | None:
        """The most unequal bytes of a step; None while no differing step's bytes are known."""
        known = [d.unequal_bytes for d in self.differences if d.unequal_bytes is not None]
        return max(known, default=0) if known or not self.differences else None

    @property
    def undecoded(self) -> tuple[int | None, ...]:
        """Where only the digests are known to differ: steps, and None for the prefill."""
        return tuple(d.step for d in self.all_differences if d.unequal_bytes is None)

    @property
    def all_differences(self) -> tuple[Difference, ...]:
        """The prefill's, then those of the steps."""
        return self.differences if self.prefill is None else (self.prefill, *self.differences)

    @property
    def severity(self) -> Severity | None:
        """Over all differences whose bytes were compared; None when there are none."""
        return worst(d.severity for d in self.all_differences if d.severity is not None)

    @property
    def argmax_flips(self) -> int | None:
        """Rows of steps that decode to another token; None while some step's bytes are unknown."""
        if any(d.severity is None for d in self.differences):
            return None
        return sum(d.severity.argmax_flips for d in self.differences if d.severity is not None)

    @property
    def top1_agreement(self) -> float | None:
        """The share of compared rows that decode to the same token."""
        flips = self.argmax_flips
        return None if flips is None or not self.step_rows else 1 - flips / self.step_rows

    @property
    def sentence(self) -> str:
        """One line for a report or a reason."""
        prefill = f"prefill equal {str(self.prefill_equal).lower()}"
        steps = f"{self.mismatched_steps} of {self.steps} steps differ"
        first = "" if self.first_mismatch is None else f" (first at {self.first_mismatch})"
        notes = next((f"; {d.note}" for d in self.all_differences if d.note), "")
        return f"{self.variant}: {prefill}, {steps}{first}{state_phrase(self)}{notes}"


def state_phrase(comparison: Comparison) -> str:
    if not comparison.state_diff:
        if not comparison.state_steps:
            return ""
        first = comparison.state_steps[0]
        return f", state differs after step {first.step} (sequence {first.sequences[0]})"
    count = f"{len(comparison.state_diff)} of {comparison.num_states}"
    return f", {count} states differ (first {comparison.state_diff[0]})"
