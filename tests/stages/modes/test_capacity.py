"""How many rows each slot may verify."""

from __future__ import annotations

import pytest

from metpipe.config.rules import MAX_WIDTH
from metpipe.stages.modes.capacity import capped, slot_capacity


def test_the_ladder_of_the_first_slots():
    """Up to 8 sequences may have 3 drafts each, up to 32 one."""
    assert [slot_capacity(slot) for slot in range(32)] == [4] * 8 + [2] * 24


def test_past_the_dispatch_cap_one_draft_is_left():
    assert {slot_capacity(slot) for slot in (32, 33, 127)} == {2}


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        ((4, 4), (4, 4)),
        ((8, 3, 2), (4, 3, 2)),
        ((4,) * 10, (4,) * 8 + (2, 2)),
        ((2,) * 9, (2,) * 9),
        ((3,) * 9, (3,) * 8 + (2,)),
    ],
)
def test_each_width_is_capped_by_its_slot(widths, expected):
    assert capped(widths) == expected


def test_a_sequence_alone_may_be_deeper():
    assert slot_capacity(0) < MAX_WIDTH
