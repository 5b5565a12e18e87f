"""Rows belong to the sequences that a mode says, and no pool row belongs to two."""

from __future__ import annotations

import pytest

from metpipe.circuit.vocabulary import MODES
from metpipe.engine.microtest.step_layout import lay_out, sequence_widths

BLOCK = 16
ROWS = (1, 2, 3, 5, 17)


@pytest.mark.parametrize(
    ("mode", "rows", "widths"),
    [
        ("decode", 3, [1, 1, 1]),
        ("multi_seq", 2, [1, 1]),
        ("verify", 5, [5]),
        ("verify_batch", 5, [3, 2]),
        ("verify_batch", 3, [3]),
        ("prefill", 17, [17]),
        ("prefill_chunk", 2, [2]),
    ],
)
def test_rows_of_each_sequence(mode, rows, widths):
    assert sequence_widths(mode, rows) == widths


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mode", MODES)
def test_each_token_has_a_pool_row_of_its_own(mode, rows):
    step = lay_out(mode, rows, BLOCK, vocab_size=101)
    positions, table = step.tensors["positions"].tolist(), step.tensors["block_table"].tolist()
    written = [
        blocks[position // BLOCK] * BLOCK + position % BLOCK
        for position, blocks in zip(positions, table, strict=True)
    ]
    assert len(set(written)) == rows
    assert sorted(written) == step.current.nonzero().flatten().tolist()
    assert not (step.current & step.committed).any()


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mode", ["decode", "verify", "verify_batch", "prefill"])
def test_every_earlier_token_of_a_row_is_committed_or_the_steps_own(mode, rows):
    step = lay_out(mode, rows, BLOCK, vocab_size=101)
    held = step.committed | step.current
    tables = step.tensors["block_table"].tolist()
    for position, blocks in zip(step.tensors["positions"].tolist(), tables, strict=True):
        for token in range(position + 1):
            assert held[blocks[token // BLOCK] * BLOCK + token % BLOCK]


def test_blocks_are_scattered_and_the_rest_of_a_table_is_the_dummy():
    step = lay_out("multi_seq", 17, BLOCK, vocab_size=101)
    first = step.tensors["block_table"][:, 0].tolist()
    assert first != sorted(first)
    assert first != sorted(first, reverse=True)
    assert step.tensors["block_table"][:, -1].tolist() == [step.num_blocks - 1] * 17
    pool = (step.committed | step.current).view(step.num_blocks, BLOCK)
    assert not pool[-2:].any()  # the dummy and a block that nobody owns


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mode", ["decode", "verify", "verify_batch", "prefill"])
def test_all_but_the_last_row_of_a_sequence_leave_a_snapshot_each_in_a_row_of_its_own(mode, rows):
    step = lay_out(mode, rows, BLOCK, vocab_size=101)
    slots, snapshots = step.tensors["slots"].tolist(), step.tensors["snapshots"].tolist()
    is_last = [slots[row : row + 2] != [slots[row]] * 2 for row in range(rows)]
    assert [found == -1 for found in snapshots] == is_last
    named = [found for found in snapshots if found >= 0]
    assert sorted(named) == list(range(step.num_snapshots - 1))
    assert len(named) < 4 or named not in (sorted(named), sorted(named, reverse=True))
    assert set(slots) == set(range(step.num_slots - 1))


def test_sequences_start_on_both_sides_of_a_block_edge():
    starts = set(lay_out("multi_seq", 17, BLOCK, vocab_size=101).tensors["positions"].tolist())
    assert {0, 15, 16, 17} <= starts


def test_token_ids_reach_both_ends_of_the_vocabulary():
    ids = lay_out("decode", 3, BLOCK, vocab_size=101).tensors["token_ids"].tolist()
    assert ids[:2] == [100, 0]
    assert 0 <= ids[2] < 101
