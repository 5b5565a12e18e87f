"""Drafts, accepts and batch shapes of the verify modes."""

from __future__ import annotations

import pytest

from metpipe.diff.speculation import (
    count_accepted,
    draft_tokens,
    unexercised_accepts,
    verify_shapes,
)


@pytest.mark.parametrize(
    ("committed", "step", "expected"),
    [
        pytest.param(1, 0, (12, 13, 14), id="even-step-is-right"),
        pytest.param(1, 1, (12, 14, 14), id="second-wrong"),
        pytest.param(1, 3, (13, 13, 14), id="first-wrong"),
        pytest.param(0, 5, (11, 12, 14), id="third-wrong"),
        pytest.param(4, 0, (15, 0, 0), id="past-the-end"),
    ],
)
def test_drafts_of_four_rows(committed: int, step: int, expected: tuple[int, ...]) -> None:
    continuation = [10, 11, 12, 13, 14, 15]
    assert draft_tokens(continuation, committed, step, width=4, vocab_size=100) == expected


def test_a_wrong_draft_wraps_at_the_vocabulary() -> None:
    assert draft_tokens([99, 99], 0, 1, width=2, vocab_size=100) == (0,)
    with pytest.raises(ValueError, match="width 1"):
        draft_tokens([1], 0, 0, width=1, vocab_size=100)


@pytest.mark.parametrize(
    ("tokens", "outputs", "expected"),
    [
        ((1, 2, 3, 4), (2, 3, 4, 9), 3),
        ((1, 2, 3, 4), (2, 7, 4, 9), 1),
        ((1, 2), (5, 9), 0),
    ],
)
def test_leading_drafts_are_accepted(
    tokens: tuple[int, ...], outputs: tuple[int, ...], expected: int
) -> None:
    assert count_accepted(tokens, outputs) == expected


@pytest.mark.parametrize(
    ("accepted", "widths", "exercised"),
    [
        ([(2,), (0,), (2,), (1,)], (3,), True),
        ([(2,), (2,), (2,), (2,)], (3,), False),
        ([(0,), (1,), (0,), (1,)], (3,), False),
        ([], (3,), False),
        ([(3, 1)], (4, 2), False),
        ([(3, 0)], (4, 2), True),
        ([(1, 1), (1, 1)], (4, 2), True),
    ],
)
def test_both_kinds_of_accept_are_needed_over_all_sequences(
    accepted: list[tuple[int, ...]], widths: tuple[int, ...], exercised: bool
) -> None:
    reason = unexercised_accepts(accepted, widths, name="verify, K=3")
    assert (reason is None) == exercised
    if reason is not None:
        assert reason.startswith("verify, K=3: ")
        assert "needs both full and partial accepts" in reason


def test_the_reason_counts_full_accepts_of_each_sequence() -> None:
    said = unexercised_accepts([(1, 1), (1, 1)], (2, 2), name="K=2")
    assert said is not None
    assert said.startswith("K=2: 4 of 4 verifies accepted every draft")


@pytest.mark.parametrize(
    ("num_sequences", "widths", "expected"),
    [
        (2, [4], ((4, 4),)),
        (7, [2, 4, 3], ((4,) * 7, (3,) * 7, (2,) * 7, (4, 4, 4, 3, 3, 2, 2))),
        (2, [2, 3, 4], ((4, 4), (3, 3), (2, 2))),
        (2, [2, 2], ((2, 2),)),
        (2, [2, 3], ((3, 3), (2, 2), (3, 2))),
    ],
)
def test_shapes_of_a_batch(
    num_sequences: int, widths: list[int], expected: tuple[tuple[int, ...], ...]
) -> None:
    assert verify_shapes(num_sequences, widths) == expected
