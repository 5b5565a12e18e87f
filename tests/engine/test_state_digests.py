"""What a step wrote, digested per sequence: wherever it lies, and nothing beside it."""

from __future__ import annotations

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.selection import ForwardSelect
from tests.engine.opened import opened

CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())
PROMPT = [70, 81, 92, 103]


@pytest.fixture(scope="module")
def model():
    return opened(slots=4, blocks=60, runs=(("multi_seq", 2),))


@pytest.fixture
def two(model):
    """Two sequences with the same four tokens, in other blocks."""
    forward, sequences = model.forward(CIRCUIT), [model.open(), model.open()]
    for sequence in sequences:
        forward.prefill(sequence, PROMPT)
    yield sequences
    for sequence in reversed(sequences):
        model.close(sequence)
    forward.close()


def row_of(model, sequence, token):
    size = model.sizes.block_size
    return sequence.blocks[token // size] * size + token % size


def test_equal_tokens_have_equal_digests_in_any_blocks(model, two):
    ours, theirs = model.digests.written(two, [4, 4])
    assert two[0].blocks != two[1].blocks
    assert ours == theirs
    assert len(ours) == 64


@pytest.mark.parametrize(("token", "seen"), [(3, True), (2, True), (1, False)])
def test_only_the_tokens_of_the_step_count(model, two, token, seen):
    before = model.digests.written(two, [2, 2])
    pool, row = model.states["l1.attn.v"], row_of(model, two[0], token)
    pool.view(torch.int16)[row, 5] ^= 1
    after = model.digests.written(two, [2, 2])
    pool.view(torch.int16)[row, 5] ^= 1
    assert (after[0] != before[0]) == seen
    assert after[1] == before[1]


def test_two_tokens_swapped_are_another_step(model, two):
    before = model.digests.written(two[:1], [2])
    pool = model.states["l0.attn.k"]
    rows = [row_of(model, two[0], token) for token in (2, 3)]
    pool[rows] = pool[rows[::-1]].clone()
    assert model.digests.written(two[:1], [2]) != before


def test_rows_are_hashed_one_by_one(model):
    logits = torch.arange(12, dtype=torch.float32).view(3, 4).to(torch.bfloat16)
    digests = model.hash_rows(logits, 7)
    assert len(set(digests)) == 3
    assert model.hash_rows(logits[1:2], 7) == digests[1:2]
    assert model.hash_rows(logits, 8) != digests
    assert model.hash_rows(torch.stack([logits[0], logits[0]]), 7) == digests[:1] * 2
