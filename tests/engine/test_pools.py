"""No unit has two owners, free + owned = all, and a reversed close repeats the layout."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from metpipe.engine.pools import FreeList, SequencePool
from metpipe.errors import ConfigError


def test_units_are_handed_out_in_order_and_the_last_freed_first():
    units = FreeList(4, "blocks", "slots")
    assert [units.take() for _ in range(3)] == [0, 1, 2]
    units.give(0)
    units.give(2)
    assert [units.take() for _ in range(3)] == [2, 0, 3]


def test_an_empty_pool_names_itself_and_the_knob():
    units = FreeList(1, "KV blocks", "slots")
    units.take()
    with pytest.raises(ConfigError, match=r"pool of 1 KV blocks is empty: raise slots"):
        units.take()


def test_giving_back_what_is_not_owned_is_refused():
    with pytest.raises(ValueError, match="unit 3"):
        FreeList(4, "blocks", "slots").give(3)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (15, 1), (16, 1), (17, 2), (32, 2), (33, 3)]
)
def test_reserve_covers_exactly_the_tokens(tokens, blocks):
    pool = SequencePool(num_blocks=9, num_slots=1, block_size=16)
    sequence = pool.open()
    pool.reserve(sequence, tokens)
    assert len(sequence.blocks) == blocks


def test_the_dummy_block_is_never_owned():
    pool = SequencePool(num_blocks=3, num_slots=1, block_size=16)
    sequence = pool.open()
    pool.reserve(sequence, 32)
    assert sequence.blocks == [0, 1]
    assert pool.dummy_block == 2
    with pytest.raises(ConfigError, match="KV blocks"):
        pool.reserve(sequence, 33)


def test_a_reversed_close_hands_out_the_same_layout_again():
    pool = SequencePool(num_blocks=20, num_slots=4, block_size=16)

    def layout() -> list[tuple[int, list[int]]]:
        opened = [pool.open() for _ in range(3)]
        for sequence, tokens in zip(opened, (40, 16, 90), strict=True):
            pool.reserve(sequence, tokens)
        seen = [(s.slot, list(s.blocks)) for s in opened]
        for sequence in reversed(opened):
            pool.close(sequence)
        return seen

    assert layout() == layout()


def test_closing_twice_is_refused():
    pool = SequencePool(num_blocks=2, num_slots=1, block_size=16)
    sequence = pool.open()
    pool.close(sequence)
    with pytest.raises(ValueError, match="twice"):
        pool.close(sequence)


class PoolMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.pool = SequencePool(num_blocks=24, num_slots=5, block_size=16)
        self.opened = []

    @precondition(lambda self: self.pool.slots.num_free > 0)
    @rule()
    def open(self):
        self.opened.append(self.pool.open())

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 9), tokens=st.integers(1, 200))
    def grow(self, which, tokens):
        sequence = self.opened[which % len(self.opened)]
        try:
            self.pool.reserve(sequence, tokens)
        except ConfigError:
            assert self.pool.blocks.num_free == 0

    @precondition(lambda self: self.opened)
    @rule(which=st.integers(0, 9))
    def close(self, which):
        self.pool.close(self.opened.pop(which % len(self.opened)))

    @invariant()
    def every_unit_has_one_owner_or_is_free(self):
        blocks = [block for sequence in self.opened for block in sequence.blocks]
        slots = [sequence.slot for sequence in self.opened]
        assert len(set(blocks)) == len(blocks)
        assert len(set(slots)) == len(slots)
        assert len(blocks) + self.pool.blocks.num_free == 23
        assert len(slots) + self.pool.slots.num_free == 5
        assert self.pool.dummy_block not in blocks


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, deadline=None)
