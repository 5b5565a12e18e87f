"""The verdict, with its reasons: a pure function of the evidence.

Three ranks, the first that has a reason decides. 1: nothing can be proven, since the reference does
not repeat or the comparer is broken (INCONCLUSIVE). 2: something is wrong (FAIL). 3: something was
not proven (INCONCLUSIVE). Otherwise PASS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from metpipe.diff.comparison import Comparison
from metpipe.diff.invariance import Cell, broken_promises
from metpipe.diff.records import Check, Control, MovedBytes, VacuousPair
from metpipe.errors import Exit

__all__ = ["Evidence", "Expect", "JudgedCase", "Verdict", "groundless", "judge"]

Expect = Literal["equal", "report"]
"""Whether a comparison is judged, or only shown."""


@dataclass(frozen=True, slots=True)
class JudgedCase:
    """One comparison, of which case (prompt, width) it is, and whether it is judged."""

    name: str
    comparison: Comparison
    expect: Expect = "equal"
    mode: str = "single"

    @property
    def judged(self) -> bool:
        return self.expect == "equal"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that a verdict is made of."""

    cases: tuple[JudgedCase, ...]
    repeats: tuple[Control, ...]
    controls: tuple[Control, ...]
    self_test: tuple[Check, ...]
    moved: tuple[MovedBytes, ...] = ()
    contradictions: tuple[str, ...] = ()
    """A sentence for each place at which a judged forward, or the reference, contradicts itself."""
    unexercised: tuple[str, ...] = ()
    """A sentence for each path that should have run and did not."""
    vacuous: tuple[VacuousPair, ...] = ()
    cells: tuple[Cell, ...] = ()
    """The same logical row on two ways, of judged forwards; the promised ones are judged."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """PASS, FAIL or INCONCLUSIVE; no reasons exactly when PASS, those that decided first."""

    outcome: Exit
    reasons: tuple[str, ...]


def judge(evidence: Evidence) -> Verdict:
    """The verdict; all reasons of all ranks are given, in the order of the ranks."""
    ranks = (
        (Exit.INCONCLUSIVE, tuple(groundless(evidence))),
        (Exit.FAIL, tuple(wrong(evidence))),
        (Exit.INCONCLUSIVE, tuple(unproven(evidence))),
    )
    outcome = next((outcome for outcome, reasons in ranks if reasons), Exit.PASS)
    return Verdict(outcome, tuple(reason for _, reasons in ranks for reason in reasons))


def groundless(evidence: Evidence) -> Iterator[str]:
    """Why no comparison of this run means anything."""
    if not evidence.self_test:
        yield "the comparer's self-test did not run."
    yield from (
        f"the comparer's self-test failed, {check.name}: {check.sentence}"
        for check in evidence.self_test
        if not check.passed
    )
    if not evidence.repeats:
        yield "the reference was not repeated, so a difference could be its own."
    yield from (repeat.sentence for repeat in evidence.repeats if not repeat)


def wrong(evidence: Evidence) -> Iterator[str]:
    """What is wrong with a judged forward, or with the reference."""
    for case in evidence.cases:
        if case.judged and not case.comparison:
            yield f"{case.name}, {case.comparison.sentence}"
    yield from broken_promises(evidence.cells)
    yield from evidence.contradictions
    shown_only = unjudged_variants(evidence)
    for moved in evidence.moved:
        if moved.labels and moved.variant not in shown_only:
            labels = ", ".join(moved.labels)
            yield f"{moved.case}, {moved.variant}: bytes that no step owns moved ({labels})"
    for control in evidence.controls:
        if (
            control.verdict in ("early", "other_row", "lingers")
            and control.variant not in shown_only
        ):
            yield control.sentence


def unproven(evidence: Evidence) -> Iterator[str]:
    """What a PASS would need and this run does not show."""
    judged = [(case.comparison.variant, case.mode) for case in evidence.cases if case.judged]
    judged += [(cell.variant, "invariance") for cell in evidence.cells if cell.promised]
    if not judged:
        yield "nothing was compared: no judged comparison."
    shown_only = unjudged_variants(evidence)
    controlled = {(control.variant, control.mode) for control in evidence.controls}
    for variant, mode in dict.fromkeys(judged):
        if (variant, mode) not in controlled:
            where = variant if mode == "single" else f"{variant}, {mode}"
            yield f"{where}: no detection control ran, so its comparison could be blind."
    for control in evidence.controls:
        if control.verdict in ("blind", "late") and control.variant not in shown_only:
            yield control.sentence
    yield from evidence.unexercised
    for pair in evidence.vacuous:
        if not pair.allowed and pair.variant in {variant for variant, _ in judged}:
            yield pair.sentence


def unjudged_variants(evidence: Evidence) -> frozenset[str]:
    """Variants that are only shown, in every case."""
    judged = {case.comparison.variant for case in evidence.cases if case.judged}
    shown = {case.comparison.variant for case in evidence.cases if not case.judged}
    return frozenset(shown - judged)
