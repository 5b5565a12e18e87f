"""The bisection on plain functions."""

from __future__ import annotations

import pytest

from metpipe.memory.inverse import largest_fitting


@pytest.mark.parametrize("limit", [1, 2, 7, 64, 99, 100])
def test_bisection_finds_the_limit_in_ten_calls(limit):
    calls = []

    def fits(value):
        calls.append(value)
        return value <= limit

    assert largest_fitting(1, 100, fits) == limit
    assert len(calls) <= 10


def test_nothing_fits():
    assert largest_fitting(1, 100, lambda _: False) is None


def test_an_empty_range_is_an_error():
    with pytest.raises(ValueError, match=r"9\.\.8"):
        largest_fitting(9, 8, lambda _: True)
