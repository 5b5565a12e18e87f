"""The control changes one token, half way."""

from __future__ import annotations

import pytest

from metpipe.diff.feeding import change_token, changed_step


@pytest.mark.parametrize(("steps", "expected"), [(1, 0), (2, 1), (15, 7), (16, 8)])
def test_control_changes_the_step_half_way(steps: int, expected: int) -> None:
    assert changed_step(steps) == expected


def test_only_the_token_fed_at_the_step_changes() -> None:
    assert change_token([5, 6, 7], 1, 100) == (5, 7, 7)
    assert change_token([5, 99], 1, 100) == (5, 0)
    assert change_token([0, 1], 0, 2) == (1, 1)


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="1 id"):
        change_token([0, 0], 1, 1)
    with pytest.raises(ValueError, match="2 is not one of the 2"):
        change_token([0, 0], 2, 10)
    with pytest.raises(ValueError, match="-1 is not"):
        change_token([0, 0], -1, 10)
    with pytest.raises(ValueError, match="0 steps"):
        changed_step(0)
