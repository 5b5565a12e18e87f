"""The controls judged: does the reference equal itself, and is a changed input seen where it is.

A detection control replays a run with the token fed at one step changed, for one row. The prefill
and the earlier steps must be equal, the changed step must differ, and no other row may move.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from metpipe.diff.comparison import Comparison
from metpipe.diff.records import Control, ControlVerdict

__all__ = ["PREFILL", "judge_detection", "judge_path", "judge_repeat", "other_paths"]

PREFILL = -1
"""The prefill's place before step 0, where a difference is a leak as well."""

Place = tuple[int, int]  # step, and a row or a sequence


def judge_repeat(comparison: Comparison, *, name: str = "repeat") -> Control:
    """The reference run again, compared with itself: any difference is not repeatable."""
    verdict: ControlVerdict = "ok" if comparison else "not_repeatable"
    sentence = f"{name}: {'equal' if comparison else 'does not equal itself'}; "
    return Control(
        name=name,
        variant=comparison.variant,
        changed_step=None,
        changed_row=None,
        first_mismatch=comparison.first_mismatch,
        verdict=verdict,
        sentence=sentence + comparison.sentence,
    )


def other_paths(reference: Mapping[str, str], repeat: Mapping[str, str]) -> tuple[str, ...]:
    """Steps ("mode rows") of a repeat that launched other kernels than the reference's did.

    The reference may have run more: what it drafts from, it decodes beside.
    """
    return tuple(step for step, digest in repeat.items() if reference.get(step) != digest)


def judge_path(steps: Sequence[str], *, name: str, mode: str) -> Control:
    """A repeat that took another path: its equality, or its difference, is of other kernels."""
    return Control(
        name=name,
        variant="legacy-repeat",
        changed_step=None,
        changed_row=None,
        first_mismatch=None,
        verdict="not_repeatable",
        sentence=f"{name}, {mode}: took another path, other kernels ran in {', '.join(steps)}",
        mode=mode,
    )


def judge_detection(
    comparison: Comparison,
    *,
    changed_step: int,
    changed_row: int = 0,
    name: str = "token changed",
    baseline: Comparison | None = None,
    owner_of: Callable[[int], int] = lambda row: row,
    recovers: bool = False,
    writes: bool = False,
    keeps: bool = False,
) -> Control:
    """A run with one changed input, compared with the reference.

    `baseline` is the same forward's unchanged run against the same reference. What differs there
    already is the forward's own difference, judged by that comparison, and no leak of the change.
    `owner_of` says which sequence a row of a step belongs to. `recovers`: the changed input is a
    draft that was rejected, so that later steps must be equal again. `writes`: what the changed
    step itself writes must differ too; `keeps`: some state at the end must.
    Raises ValueError when the changed step was not compared.
    """
    if not PREFILL <= changed_step < comparison.steps:
        raise ValueError(f"changed step {changed_step} is not one of {comparison.steps} steps.")
    changed = _Changed(changed_step, changed_row, owner_of, recovers, writes, keeps)
    verdict, text = changed.judge(_Seen.of(comparison, baseline, (changed_step, changed_row)))
    where = "in the prompt" if changed_step == PREFILL else f"at step {changed_step}"
    return Control(
        name=name,
        variant=comparison.variant,
        changed_step=changed_step,
        changed_row=changed_row,
        first_mismatch=comparison.first_mismatch,
        verdict=verdict,
        sentence=f"detection control, {comparison.variant}, {name} {where}: {text}",
    )


@dataclass(frozen=True, slots=True)
class _Seen:
    """Where a changed run differs: rows of logits, and sequences whose state does."""

    rows: frozenset[Place]
    states: frozenset[Place]
    ends: frozenset[str]
    """states that differ at the end"""
    written: frozenset[Place]
    """as `states`, the forward's own differences too"""
    any_end: bool
    """whether any state differs at the end, a difference of the forward's own too"""

    @classmethod
    def of(cls, comparison: Comparison, baseline: Comparison | None, changed: Place) -> _Seen:
        """What differs beyond what the forward's own unchanged run does; the changed row always."""
        rows, states = places(comparison), state_places(comparison)
        ends = frozenset(comparison.state_diff)
        if baseline is None:
            return cls(rows, states, ends, states, bool(ends))
        own_ends = frozenset(baseline.state_diff)
        own = places(baseline) - {changed}
        kept = states - state_places(baseline)
        return cls(rows - own, kept, ends - own_ends, states, bool(ends))


@dataclass(frozen=True, slots=True)
class _Changed:
    """The one change, and whom it may move."""

    step: int
    row: int
    owner_of: Callable[[int], int]
    recovers: bool
    writes: bool
    keeps: bool

    def judge(self, seen: _Seen) -> tuple[ControlVerdict, str]:
        """Exactly there, in that sequence alone, and never before."""
        moved = [(step, self.owner_of(row)) for step, row in seen.rows] + [*seen.states]
        if not moved:
            return "blind", "saw no difference (blind)"
        if early := self._early(min(step for step, _ in moved)):
            return "early", early
        others = sorted({sequence for _, sequence in moved} - {self.owner_of(self.row)})
        if others:
            return "other_row", f"row {others[0]} moved, and row {self.row} was changed"
        rows = sorted(row for step, row in seen.rows if step == self.step)
        if not rows or rows[0] > self.row:
            at = min((step for step, _ in seen.rows), default=None)
            later = "in state alone" if at is None else f"only at step {at}"
            return "late", f"seen {later} (blind at the changed step)"
        if rows[0] < self.row:
            return "early", f"row {rows[0]} of the step moved, before row {self.row}, the changed"
        if self._state_is_blind(seen):
            return "blind", "seen in logits, and in no state (the states' comparison is blind)"
        if self.recovers and (lingers := self._lingers(seen, moved)):
            return "lingers", lingers
        return "ok", "seen there, and nowhere before" + (" or after" if self.recovers else "")

    def _state_is_blind(self, seen: _Seen) -> bool:
        """Whether the change should have moved a state, and none was seen to differ."""
        place = (self.step, self.owner_of(self.row))
        if self.writes and place not in seen.written:
            return True
        return self.keeps and not seen.any_end

    def _early(self, first: int) -> str | None:
        if first >= self.step:
            return None
        where = "the prefill" if first == PREFILL else f"step {first}"
        return f"{where} differs, before the change (a leak)"

    def _lingers(self, seen: _Seen, moved: Sequence[Place]) -> str | None:
        """What still differs though the changed draft was rejected."""
        after = [step for step, _ in moved if step > self.step]
        after += [step for step, _ in seen.states if step == self.step]
        if after:
            return f"a rejected draft moved step {min(after)} (its state was not taken back)"
        if seen.ends:
            return f"a rejected draft moved the state at the end ({min(seen.ends)})"
        return None


def places(comparison: Comparison) -> frozenset[Place]:
    """(step, row) of every row of logits that differs."""
    return frozenset(
        (PREFILL if difference.step is None else difference.step, row)
        for difference in comparison.all_differences
        for row in difference.rows
    )


def state_places(comparison: Comparison) -> frozenset[Place]:
    """(step, sequence) of every state that differs after a step."""
    return frozenset(
        (difference.step, sequence)
        for difference in comparison.state_steps
        for sequence in difference.sequences
    )
