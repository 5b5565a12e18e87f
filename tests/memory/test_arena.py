"""The remembered arena against a placement that remembers nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metpipe.circuit.layout import ALIGNMENT
from metpipe.memory.arena import FOREVER, Birth, Lifetimes, arena_bytes


def placed_plainly(lifetimes, sizes):
    """First fit over absolute live ranges, every overlap looked at."""
    last = len(lifetimes.groups) - 1
    items = []
    for group, births in enumerate(lifetimes.groups):
        for order, birth in enumerate(lifetimes.births[births]):
            left = birth.groups_left
            end = last if left == FOREVER else group + left
            items.append((group, -sizes[birth.size], order, end))
    placed, highest = [], 0
    for start, negative, _, end in sorted(items):
        offset, size = 0, -negative
        for low, high, s, e in sorted(placed):
            if e < start or s > end:
                continue
            if offset + size <= low:
                break
            offset = max(offset, (high + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT)
        placed.append((offset, offset + size, start, end))
        highest = max(highest, offset + size)
    return highest


births = st.builds(Birth, size=st.integers(0, 4), groups_left=st.integers(FOREVER, 6))


@st.composite
def plans(draw):
    kinds = draw(st.lists(st.lists(births, max_size=3).map(tuple), min_size=1, max_size=5))
    layer = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=6))
    return Lifetimes(tuple(layer * draw(st.integers(1, 6))), tuple(kinds))


@settings(max_examples=300, deadline=None)
@given(plans(), st.lists(st.integers(1, 2000), min_size=5, max_size=5))
def test_remembering_changes_nothing(lifetimes, sizes):
    assert arena_bytes(lifetimes, sizes) == placed_plainly(lifetimes, sizes)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        # a (100) and b (300) start together: b at 0, a at 512; c (50) needs its own place at 768
        (((Birth(0, 1), Birth(1, 1)), (Birth(2, 0),)), 768 + 50),
        # b dies with its group, so c takes its place at 0
        (((Birth(0, 1), Birth(1, 0)), (Birth(2, 0),)), 512 + 100),
    ],
)
def test_by_hand(groups, expected):
    lifetimes = Lifetimes(tuple(range(len(groups))), groups)
    assert arena_bytes(lifetimes, [100, 300, 50]) == expected
