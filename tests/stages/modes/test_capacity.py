"""How many rows each slot may verify."""

from __future__ import annotations

import pytest

from metpipe.config.mode_rules import MAX_WIDTH
from metpipe.stages.modes.capacity import Capacity
from metpipe.stages.modes.case import slots_of

THREE = Capacity(num_drafts=3)


def test_the_ladder_of_the_first_slots():
    """Up to 8 sequences may have 3 drafts each, up to 32 one."""
    assert [THREE.rows(slot) for slot in range(32)] == [4] * 8 + [2] * 24


def test_past_the_dispatch_cap_one_draft_is_left():
    assert {THREE.rows(slot) for slot in (32, 33, 127)} == {2}


@pytest.mark.parametrize(("num_drafts", "rows"), [(1, 2), (2, 3), (7, 4)])
def test_no_slot_has_more_drafts_than_the_serve_flag(num_drafts, rows):
    assert Capacity(num_drafts).rows(0) == rows
    assert Capacity(num_drafts).rows(20) == 2


@pytest.mark.parametrize("max_speculating", [1, 4, 8, 12, 64])
def test_a_slot_behind_those_that_may_speculate_has_its_own_batchs_drafts(max_speculating):
    """A slot's allowance is the most of any batch that reaches it."""
    capacity = Capacity(3, max_speculating)
    assert [capacity.rows(slot) for slot in (0, 7, 8, 40)] == [4, 4, 2, 2]


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
    assert THREE.capped(widths, range(len(widths))) == expected


def test_behind_a_gap_a_sequence_has_what_its_own_slot_allows():
    """Of nine in ten slots the fifth is nobody's, so the last two lie beyond slot 7."""
    slots = slots_of(9, fragmented=True)
    assert slots == (0, 1, 2, 3, 5, 6, 7, 8, 9)
    assert THREE.capped((4,) * 9, slots) == (4,) * 7 + (2, 2)


def test_a_sequence_alone_may_be_deeper():
    assert THREE.rows(0) < MAX_WIDTH
