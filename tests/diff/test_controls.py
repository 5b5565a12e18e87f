"""A change must be seen at its step and row, and nowhere before or beside it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison, Difference, StateDifference
from metpipe.diff.controls import PREFILL, judge_detection, judge_repeat
from metpipe.diff.feeding import change_token, changed_step
from metpipe.diff.records import Control


def found(
    *places: tuple[int | None, int],
    steps: int = 8,
    states: Sequence[tuple[int, int]] = (),
    ends: tuple[str, ...] = (),
) -> Comparison:
    """A comparison that differs at these (step, row) places; step None is the prefill.

    `states`: (step, sequence) whose state differs after it; `ends`: states at the end.
    """
    by_step: dict[int | None, list[int]] = {}
    for step, row in places:
        by_step.setdefault(step, []).append(row)
    differences = {step: Difference(step, 1, 0, tuple(rows)) for step, rows in by_step.items()}
    prefill = differences.pop(None, None)
    ordered = tuple(differences[step] for step in sorted(s for s in differences if s is not None))
    after = tuple(StateDifference(step, (sequence,)) for step, sequence in states)
    return Comparison("circuit", steps, steps * 3, prefill, ordered, 0, ends, after)


@pytest.mark.parametrize(
    ("comparison", "verdict", "text"),
    [
        pytest.param(found((4, 1), (5, 1), (7, 1)), "ok", "seen there", id="ok"),
        pytest.param(found((4, 1)), "ok", "seen there", id="ok-once"),
        pytest.param(found(), "blind", "saw no difference", id="blind"),
        pytest.param(found((5, 1)), "late", "only at step 5", id="late"),
        pytest.param(found((3, 1), (4, 1)), "early", "step 3 differs", id="early"),
        pytest.param(found((None, 1), (4, 1)), "early", "the prefill differs", id="prefill"),
        pytest.param(found((3, 0), (4, 1)), "early", "step 3 differs", id="early-other-row"),
        pytest.param(found((4, 1), (4, 2)), "other_row", "row 2 moved", id="other-row"),
        pytest.param(found((4, 1), (6, 0)), "other_row", "row 0 moved", id="other-row-later"),
        pytest.param(found((4, 0)), "other_row", "row 0 moved", id="wrong-row"),
    ],
)
def test_detection_control(comparison: Comparison, verdict: str, text: str) -> None:
    control = judge_detection(comparison, changed_step=4, changed_row=1, name="token changed")
    assert control.verdict == verdict
    assert bool(control) == (verdict == "ok")
    assert control.sentence.startswith("detection control, circuit, token changed at step 4: ")
    assert text in control.sentence
    assert (control.changed_step, control.changed_row) == (4, 1)
    assert control.first_mismatch == comparison.first_mismatch


def test_the_forwards_own_difference_is_no_leak() -> None:
    own = found((2, 0), (4, 1), (6, 2))
    control = found((2, 0), (4, 1), (5, 1), (6, 2))
    assert judge_detection(control, changed_step=4, changed_row=1).verdict == "early"
    judged = judge_detection(control, changed_step=4, changed_row=1, baseline=own)
    assert judged.verdict == "ok"
    leaking = found((2, 0), (3, 0), (4, 1))
    judged = judge_detection(leaking, changed_step=4, changed_row=1, baseline=own)
    assert judged.verdict == "early"


def test_a_changed_step_that_was_not_compared_is_refused() -> None:
    for step in (8, PREFILL - 1):
        with pytest.raises(ValueError, match=f"changed step {step} is not one of 8"):
            judge_detection(found(), changed_step=step)


def test_the_first_step_can_be_the_changed_one() -> None:
    assert judge_detection(found((0, 0)), changed_step=0).verdict == "ok"
    assert judge_detection(found((None, 0), (0, 0)), changed_step=0).verdict == "early"


def owner_of_pairs(row: int) -> int:
    """Rows 0 and 1 are of sequence 0, rows 2 and 3 of sequence 1, and so on."""
    return row // 2


@pytest.mark.parametrize(
    ("comparison", "verdict", "text"),
    [
        pytest.param(found((4, 3), (5, 2), (5, 3)), "ok", "seen there", id="its-sequence"),
        pytest.param(found((4, 3), (5, 1)), "other_row", "row 0 moved", id="other-sequence"),
        pytest.param(found((4, 2), (4, 3)), "early", "row 2 of the step moved", id="row-before"),
        pytest.param(found((4, 3), states=[(4, 0)]), "other_row", "row 0 moved", id="other-state"),
        pytest.param(found((4, 3), states=[(3, 1)]), "early", "step 3 differs", id="state-early"),
        pytest.param(found(states=[(4, 1)]), "late", "seen in state alone", id="state-alone"),
        pytest.param(found((4, 3), states=[(4, 1), (5, 1)]), "ok", "seen there", id="own-state"),
    ],
)
def test_a_row_may_move_its_own_sequence_alone(
    comparison: Comparison, verdict: str, text: str
) -> None:
    control = judge_detection(comparison, changed_step=4, changed_row=3, owner_of=owner_of_pairs)
    assert control.verdict == verdict, control.sentence
    assert text in control.sentence


@pytest.mark.parametrize(
    ("comparison", "verdict", "text"),
    [
        pytest.param(found((4, 1)), "ok", "nowhere before or after", id="taken-back"),
        pytest.param(found((4, 1), (6, 0)), "lingers", "moved step 6", id="later-step"),
        pytest.param(found((4, 1), states=[(4, 0)]), "lingers", "moved step 4", id="state"),
        pytest.param(found((4, 1), ends=("l0.k",)), "lingers", "the end (l0.k)", id="end"),
        pytest.param(found(), "blind", "saw no difference", id="blind"),
        pytest.param(found((5, 1)), "late", "only at step 5", id="late"),
    ],
)
def test_a_rejected_draft_leaves_nothing_behind(
    comparison: Comparison, verdict: str, text: str
) -> None:
    def judged(*, recovers: bool) -> Control:
        return judge_detection(
            comparison, changed_step=4, changed_row=1, owner_of=owner_of_pairs, recovers=recovers
        )

    assert judged(recovers=True).verdict == verdict
    assert text in judged(recovers=True).sentence
    if verdict == "lingers":
        assert judged(recovers=False).verdict == "ok"
        assert not judged(recovers=True)


def test_what_a_forward_differs_in_anyway_does_not_linger() -> None:
    own = found((6, 0), states=[(6, 0)], ends=("l0.k",))
    control = found((4, 0), (6, 0), states=[(6, 0)], ends=("l0.k",))
    judged = judge_detection(control, changed_step=4, recovers=True, baseline=own)
    assert judged.verdict == "ok"
    assert judge_detection(control, changed_step=4, recovers=True).verdict == "lingers"


@pytest.mark.parametrize(
    ("comparison", "verdict"),
    [(found((None, 0)), "ok"), (found((0, 0)), "late"), (found(), "blind")],
)
def test_a_change_of_the_prompt_is_seen_in_the_prefill(
    comparison: Comparison, verdict: str
) -> None:
    control = judge_detection(comparison, changed_step=PREFILL, name="token of the prompt changed")
    assert control.verdict == verdict
    assert "token of the prompt changed in the prompt: " in control.sentence


def test_repeat_control() -> None:
    assert judge_repeat(found()).verdict == "ok"
    differing = judge_repeat(found((3, 0)), name="legacy repeat 2")
    assert differing.verdict == "not_repeatable"
    assert not differing
    assert "legacy repeat 2: does not equal itself" in differing.sentence
    assert "1 of 8 steps differ (first at 3)" in differing.sentence


def run_model(fed: tuple[int, ...], *, delay: int = 0) -> list[torch.Tensor]:
    """Logits that hang on all tokens fed so far; a delayed model reads each token late."""
    history, rows = 0, []
    for step in range(len(fed)):
        if step >= delay:
            history = (history * 31 + fed[step - delay]) % 251
        rows.append(torch.arange(history, history + 5).to(torch.bfloat16))
    return rows


@pytest.mark.parametrize(
    ("model", "verdict"),
    [
        pytest.param(run_model, "ok", id="sound"),
        pytest.param(lambda fed: run_model(fed, delay=1), "late", id="reads-a-step-late"),
        pytest.param(lambda fed: run_model((fed[0],) * len(fed)), "blind", id="frozen-input"),
        pytest.param(lambda fed: run_model((*fed[1:], 0)), "early", id="reads-ahead"),
        pytest.param(lambda fed: [torch.ones(5) for _ in fed], "blind", id="constant"),
    ],
)
def test_control_on_whole_runs(model: type, verdict: str) -> None:
    fed = (3, 1, 4, 1, 5, 9, 2, 6)
    at = changed_step(len(fed))
    reference, run = model(fed), model(change_token(fed, at, 251))
    comparer = Comparer("model")
    comparer.prefill(torch.ones(5), torch.ones(5))
    for step, (ours, theirs) in enumerate(zip(reference, run, strict=True)):
        comparer.step(step, ours, theirs)
    assert judge_detection(comparer.result(), changed_step=at).verdict == verdict
