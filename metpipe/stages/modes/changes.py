"""The one thing that a detection control changes in a case, and where it must be seen.

Decode: the token fed half way, of the middle row. Verify: the last accepted draft, and the first
rejected one, after which all must be equal again. Prefill: the token in the middle of the prompt.
A spilled sequence: one value of each kind of state in its record becomes NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from metpipe.circuit import StateDecl
from metpipe.diff.controls import PREFILL
from metpipe.diff.feeding import change_token, changed_step
from metpipe.diff.trace import Trace
from metpipe.stages.modes.case import Case

__all__ = ["Change", "changes"]


@dataclass(frozen=True, slots=True)
class Change:
    """What is run instead, and the place at which it must be seen first."""

    name: str
    case: Case
    script: Trace
    step: int
    """PREFILL: before the first step"""
    row: int
    recovers: bool = False
    """the step's commit takes it back"""
    writes: bool = False
    """the step writes and keeps it"""
    flip: str | None = None
    """the state of which a value is changed in the record that is restored"""


def changes(
    case: Case, trace: Trace, vocab_size: int, states: Iterable[StateDecl]
) -> tuple[Change, ...]:
    """The controls of a case. A verify that accepted or rejected nothing lacks that control.

    `states`: those of the model.
    """
    if case.mode == "prefill":
        return (_prompt_changed(case, trace, vocab_size),)
    if case.spill is not None:
        return tuple(_record_changed(case, trace, case.spill, states))
    if case.widths:
        return tuple(_drafts_changed(case, trace, vocab_size))
    row, step = case.num_sequences // 2, changed_step(case.steps)
    name = "token changed" if case.num_sequences == 1 else f"token of row {row} changed"
    script = _with_token(trace, step, row, vocab_size)
    return (Change(name, case, script, step, row, writes=True),)


def _record_changed(
    case: Case, trace: Trace, step: int, states: Iterable[StateDecl]
) -> Iterator[Change]:
    """One of each kind of state, of the last layer that has it; the head's, where it runs.

    What the head reads is seen in its drafts, behind the rows of the step.
    """
    last = {(state.section, state.local): state for state in states}
    for (section, local), state in last.items():
        draft = section == "draft"
        if draft and not case.num_drafts:
            continue
        row = case.verify_rows if draft else 0
        name = f"{'draft ' if draft else ''}{local} of the record changed"
        yield Change(name, case, trace, step, row, flip=state.id)


def _prompt_changed(case: Case, trace: Trace, vocab_size: int) -> Change:
    (prompt,) = case.prompts
    at = len(prompt) // 2
    changed = change_token(prompt, at, vocab_size)
    altered = replace(case, prompts=(changed,))
    return Change("token of the prompt changed", altered, trace, PREFILL, 0)


def _drafts_changed(case: Case, trace: Trace, vocab_size: int) -> Iterator[Change]:
    """One that was accepted, of a sequence near the middle, and one that was rejected.

    A case in which no sequence has such a draft lacks that control; the verdict says so of it, as
    of any verify that did not take both ways.
    """
    for name, wanted in (("accepted", True), ("rejected", False)):
        place = _place_where(case, trace, accepted=wanted)
        if place is None:
            continue
        sequence, step = place
        first, count = sum(case.widths[:sequence]), trace.accepted[step][sequence]
        row = first + count + (0 if wanted else 1)  # the first that a commit must leave out
        script = _with_token(trace, step, row, vocab_size)
        name = f"{name} draft in row {row} changed"
        yield Change(name, case, script, step, row, recovers=not wanted, writes=wanted)


def _place_where(case: Case, trace: Trace, *, accepted: bool) -> tuple[int, int] | None:
    """The sequence nearest to the middle, and its step nearest to half way, with such a draft."""
    middle = case.num_sequences // 2
    for sequence in sorted(range(case.num_sequences), key=lambda one: (abs(one - middle), one)):
        counts = [step[sequence] for step in trace.accepted]
        step = _step_where(counts, case.widths[sequence], accepted=accepted)
        if step is not None:
            return sequence, step
    return None


def _step_where(counts: Sequence[int], width: int, *, accepted: bool) -> int | None:
    """The step nearest to half way at which a draft was accepted (or rejected)."""
    half = changed_step(len(counts))
    fitting = [
        step for step, count in enumerate(counts) if (count > 0 if accepted else count < width - 1)
    ]
    return min(fitting, key=lambda step: (abs(step - half), step), default=None)


def _with_token(trace: Trace, step: int, row: int, vocab_size: int) -> Trace:
    """The trace with the token of one row of one step replaced by the next id."""
    fed = change_token(trace.fed[step], row, vocab_size)
    return replace(trace, fed=(*trace.fed[:step], fed, *trace.fed[step + 1 :]))
