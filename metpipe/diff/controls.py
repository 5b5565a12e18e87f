"""The controls judged: does the reference equal itself, and is a changed input seen where it is.

A detection control replays a run with the token fed at one step changed, for one row. The prefill
and the earlier steps must be equal, the changed step must differ, and no other row may move.
"""

from __future__ import annotations

from metpipe.diff.comparison import Comparison
from metpipe.diff.records import Control, ControlVerdict

__all__ = ["judge_detection", "judge_repeat"]

PREFILL = -1
"""The prefill's place before step 0, where a difference is a leak as well."""

Place = tuple[int, int]  # step, row


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


def judge_detection(
    comparison: Comparison,
    *,
    changed_step: int,
    changed_row: int = 0,
    name: str = "token changed",
    baseline: Comparison | None = None,
) -> Control:
    """A run with one changed input, compared with the reference.

    `baseline` is the same forward's unchanged run against the same reference. What differs there
    already is the forward's own difference, judged by that comparison, and no leak of the change.
    Raises ValueError when the changed step was not compared.
    """
    if not 0 <= changed_step < comparison.steps:
        raise ValueError(f"changed step {changed_step} is not one of {comparison.steps} steps.")
    changed = (changed_step, changed_row)
    own = places(baseline) - {changed} if baseline is not None else frozenset()
    seen = places(comparison) - own
    verdict, text = judge(seen, changed)
    return Control(
        name=name,
        variant=comparison.variant,
        changed_step=changed_step,
        changed_row=changed_row,
        first_mismatch=comparison.first_mismatch,
        verdict=verdict,
        sentence=f"detection control, {comparison.variant}, {name} at step {changed_step}: {text}",
    )


def places(comparison: Comparison) -> frozenset[Place]:
    return frozenset(
        (PREFILL if difference.step is None else difference.step, row)
        for difference in comparison.all_differences
        for row in difference.rows
    )


def judge(seen: frozenset[Place], changed: Place) -> tuple[ControlVerdict, str]:
    changed_step, changed_row = changed
    if not seen:
        return "blind", "saw no difference (blind)"
    first = min(step for step, _ in seen)
    if first == PREFILL:
        return "early", "the prefill differs, before the change (a leak)"
    if first < changed_step:
        return "early", f"step {first} differs, before the change (a leak)"
    others = sorted({row for _, row in seen} - {changed_row})
    if others:
        return "other_row", f"row {others[0]} moved, and row {changed_row} was changed"
    if first > changed_step:
        return "late", f"seen only at step {first} (blind at the changed step)"
    return "ok", "seen there, and nowhere before"
