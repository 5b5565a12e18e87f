"""The reference chooses the stream, every other run is fed it, the control changes one token."""

from __future__ import annotations

import pytest
import torch

from metpipe.diff.feeding import Forced, Greedy, change_row, change_token, changed_step


def one_hot(token: int) -> torch.Tensor:
    logits = torch.zeros(10, dtype=torch.bfloat16)
    logits[token] = 1
    return logits


def test_greedy_feeds_and_keeps_the_argmax() -> None:
    feed = Greedy()
    assert [feed.next(one_hot(token)) for token in (3, 7, 1)] == [3, 7, 1]
    assert feed.tokens == [3, 7, 1]


def test_forced_feeds_the_record_whatever_the_logits_say() -> None:
    feed = Forced([3, 7])
    assert [feed.next(one_hot(9)), feed.next(one_hot(9))] == [3, 7]
    with pytest.raises(IndexError):
        feed.next(one_hot(9))


@pytest.mark.parametrize(("steps", "expected"), [(1, 0), (2, 1), (15, 7), (16, 8)])
def test_control_changes_the_step_half_way(steps: int, expected: int) -> None:
    assert changed_step(steps) == expected


def test_only_the_token_fed_at_the_step_changes() -> None:
    assert change_token([5, 6, 7], 1, 100) == (5, 7, 7)
    assert change_token([5, 99], 1, 100) == (5, 0)
    assert change_token([0, 1], 0, 2) == (1, 1)


def test_only_one_row_changes() -> None:
    assert change_row([[1, 2], [3, 4], [5, 6]], 1, 1, 100) == ((1, 2), (3, 5), (5, 6))
    assert change_row([[1, 2], [3, 4]], 0, 0, 100) == ((2, 2), (3, 4))


def test_a_change_that_changes_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="1 id"):
        change_token([0, 0], 1, 1)
    with pytest.raises(ValueError, match="step 2 is not one of the 2"):
        change_token([0, 0], 2, 10)
    with pytest.raises(ValueError, match="step -1"):
        change_token([0, 0], -1, 10)
    with pytest.raises(ValueError, match="row 1"):
        change_row([[1]], 1, 0, 10)
    with pytest.raises(ValueError, match="0 steps"):
        changed_step(0)
