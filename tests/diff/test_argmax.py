"""Argmax is its definition: lowest index of a tie, NaN and -inf never win."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metpipe.diff.argmax import argmax, argmax_rows


def by_definition(values: list[float]) -> int:
    best, index = -math.inf, 0
    for i, value in enumerate(values):
        if value > best:
            best, index = value, i
    return index


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([-3, -1, -2], 1),
        ([1, 5, 5, 2], 1),
        ([math.nan, 0.5, math.nan], 1),
        ([-math.inf, math.inf], 1),
        ([-math.inf, -math.inf], 0),
        ([math.nan, math.nan], 0),
        ([math.nan, -math.inf], 0),
        ([-0.0, 0.0], 0),
    ],
)
def test_stated_cases(values: list[float], expected: int) -> None:
    assert argmax(torch.tensor(values, dtype=torch.bfloat16)) == expected


awkward = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.0, -1.0, 1e-40, 3e38])


@given(rows=st.lists(st.lists(awkward, min_size=6, max_size=6), min_size=1, max_size=4))
def test_rows_agree_with_the_definition(rows: list[list[float]]) -> None:
    logits = torch.tensor(rows, dtype=torch.bfloat16)
    assert argmax_rows(logits).tolist() == [by_definition(row) for row in logits.tolist()]


def test_lowest_of_many_ties_in_a_large_vocabulary() -> None:
    logits = torch.zeros(151936, dtype=torch.bfloat16)
    logits[[70000, 90000, 151935]] = 2.0
    assert argmax(logits) == 70000


@pytest.mark.parametrize(
    "logits",
    [
        pytest.param(torch.zeros(0), id="empty"),
        pytest.param(torch.zeros(2, 2), id="rows"),
        pytest.param(torch.zeros(3, dtype=torch.float64), id="float64"),
        pytest.param(torch.zeros(3, dtype=torch.int32), id="integers"),
    ],
)
def test_other_forms_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="logits"):
        argmax(logits)
