"""Cells of the invariance table: what differs where, what was promised, what the controls say."""

from __future__ import annotations

import pytest
import torch

from metpipe.diff.bytewise import NothingComparedError
from metpipe.diff.invariance import (
    Point,
    Side,
    broken_promises,
    compare_sides,
    judge_changed_cell,
    judge_repeat_cell,
)


def side(values):
    rows = {place: torch.tensor(row, dtype=torch.bfloat16) for place, row in values.items()}
    return Side(rows, {})


ALONE = {(-1, 0): [1.0, 2.0], (0, 0): [3.0, 4.0], (1, 0): [5.0, 6.0]}
POINTS = [("alone", Point((step, 0), (step, 2))) for step in (-1, 0, 1)]


def cell(theirs, *, promised=True, points=POINTS):
    shifted = {(step, row + 2): values for (step, row), values in theirs.items()}
    return compare_sides(
        {"alone": side(ALONE)},
        side(shifted),
        points,
        variant="circuit",
        axis="width",
        name="alone against width 3",
        promised=promised,
    )


def test_equal_rows_make_a_true_cell():
    found = cell(ALONE)
    assert found
    assert found.points == 3
    assert found.sentence == "circuit, width, alone against width 3: equal over 3 rows"


def test_the_first_differing_row_is_named_with_its_byte():
    found = cell({**ALONE, (0, 0): [3.0, 4.5], (1, 0): [5.5, 6.0]})
    assert not found
    assert (found.step, found.row, found.byte, found.differing) == (0, 2, 2, 2)
    assert found.severity is not None
    assert found.severity.max_abs == 0.5
    (reason,) = broken_promises([found])
    assert "differs at step 0, row 2, byte 2" in reason
    assert "promises" in reason


def test_what_is_not_promised_is_not_judged():
    differing = cell({**ALONE, (-1, 0): [1.0, -2.0]}, promised=False)
    assert differing.step == -1
    assert not list(broken_promises([differing]))
    assert "before the first step" in differing.sentence


def test_signed_zero_is_a_difference():
    rows = {(0, 0): [0.0, 1.0]}
    found = compare_sides(
        {"own": side(rows)}, side({(0, 0): [-0.0, 1.0]}), [("own", Point((0, 0), (0, 0)))],
        variant="v", axis="slot", name="n", promised=True,
    )  # fmt: skip
    assert not found


def test_a_cell_without_rows_is_an_error():
    with pytest.raises(NothingComparedError, match="no row was compared"):
        cell(ALONE, points=[])


@pytest.mark.parametrize(
    ("moved", "verdict"), [((), "blind"), ((0,), "early"), ((1,), "ok"), ((0, 1), "early")]
)
def test_a_changed_token_must_be_seen_at_its_step(moved, verdict):
    theirs = {**ALONE, **{(step, 0): [9.0, 9.0] for step in moved}}
    assert judge_changed_cell(cell(theirs), 1).verdict == verdict


def test_a_change_seen_too_late():
    assert judge_changed_cell(cell({**ALONE, (1, 0): [9.0, 9.0]}), 0).verdict == "late"


def test_a_repeat_that_differs_is_no_ground():
    assert judge_repeat_cell(cell(ALONE)).verdict == "ok"
    other = judge_repeat_cell(cell({**ALONE, (1, 0): [9.0, 9.0]}))
    assert other.verdict == "not_repeatable"
