"""The diff's records as parts of the report. Imports torch, as the diff does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from metpipe.diff.comparison import Comparison as Found
from metpipe.diff.records import Check as FoundCheck
from metpipe.diff.records import Control as FoundControl
from metpipe.diff.records import MovedBytes, VacuousPair
from metpipe.diff.timing import median_after_first
from metpipe.diff.trace import Trace
from metpipe.report.diff_section import (
    Check,
    Comparison,
    Control,
    Difference,
    Digests,
    Moved,
    Severity,
    StateDifference,
    Timing,
    Vacuous,
)

__all__ = ["checks", "comparison", "controls", "digests", "moved", "timing", "vacuous"]


def comparison(found: Found, expect: Literal["equal", "report"] = "equal") -> Comparison:
    """A comparison as the report shows it."""
    return Comparison(
        variant=found.variant,
        prefill_equal=found.prefill_equal,
        steps=found.steps,
        mismatched_steps=found.mismatched_steps,
        first_mismatch=found.first_mismatch,
        max_mismatched_bytes=found.max_mismatched_bytes,
        prefill_first_diff=found.prefill_first_diff,
        expect=expect,
        top1_agreement=found.top1_agreement,
        severity=None if found.severity is None else Severity(**asdict(found.severity)),
        differences=tuple(Difference(**asdict(d)) for d in found.all_differences),
        num_states=found.num_states,
        state_diff=found.state_diff,
        state_steps=tuple(StateDifference(**asdict(d)) for d in found.state_steps),
    )


def controls(found: Iterable[FoundControl]) -> tuple[Control, ...]:
    """Controls or repeats as the report shows them."""
    return tuple(Control(**asdict(control)) for control in found)


def checks(found: Iterable[FoundCheck]) -> tuple[Check, ...]:
    """The comparer's self-test as the report shows it."""
    return tuple(Check(**asdict(check)) for check in found)


def vacuous(found: Iterable[VacuousPair]) -> tuple[Vacuous, ...]:
    """Vacuous pairs as the report shows them."""
    return tuple(Vacuous(**asdict(pair)) for pair in found)


def moved(found: Iterable[MovedBytes]) -> tuple[Moved, ...]:
    """Moved bytes as the report shows them; entries without labels moved nothing."""
    return tuple(Moved(**asdict(entry)) for entry in found if entry.labels)


def timing(variant: str, trace: Trace, *, cached: bool = False) -> Timing:
    """A run's median times; null after a single step."""
    return Timing(
        variant=variant,
        enqueue_ms_median=median_after_first(trace.enqueue_ms),
        step_ms_median=median_after_first(trace.step_ms),
        cached=cached,
    )


def digests(trace: Trace) -> Digests:
    """What the reference gave."""
    return Digests(
        prefill=trace.prefill_digests,
        steps=trace.step_digests,
        states=dict(trace.state_digests),
    )
