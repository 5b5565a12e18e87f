"""Steps of many rows: batches, verifies; each row against the same row decoded alone."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.selection import ForwardSelect
from tests.engine.opened import opened

LEGACY = ForwardSelect("legacy", "legacy", Select.reference())
CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())
PROMPTS = [[70 + i, 80, 90 + 3 * i, 100][: 2 + i] for i in range(3)]
TOKENS = [65, 166, 267]


@pytest.fixture(scope="module")
def model():
    runs = (("multi_seq", 4), ("verify", 3), ("verify_batch", 8))
    return opened(slots=4, blocks=60, runs=runs, snapshot_rows=6)


@pytest.fixture(params=[LEGACY, CIRCUIT], ids=lambda select: select.name)
def forward(model, request):
    forward = model.forward(request.param)
    yield forward
    forward.close()


def bits(logits):
    return logits.clone().view(torch.int16)


@pytest.fixture
def alone(model, forward):
    """Per prompt, the bits after each of TOKENS."""
    found = []
    for prompt in PROMPTS:
        sequence = model.open()
        forward.prefill(sequence, prompt)
        found.append([bits(forward.decode(sequence, token)) for token in TOKENS])
        model.close(sequence)
    return found


@pytest.fixture
def batch(model, forward):
    """Three prefilled sequences."""
    sequences = [model.open() for _ in PROMPTS]
    for sequence, prompt in zip(sequences, PROMPTS, strict=True):
        forward.prefill(sequence, prompt)
    yield sequences
    for sequence in reversed(sequences):
        model.close(sequence)


@pytest.mark.parametrize("padded", [True, False])
def test_a_row_of_a_batch_is_the_row_alone(forward, alone, batch, padded):
    for step, token in enumerate(TOKENS):
        rows = bits(forward.decode_batch(batch, [token] * 3, padded=padded))
        assert rows.shape[0] == 3
        for row, expected in zip(rows, alone, strict=True):
            assert torch.equal(row, expected[step])
    assert f"multi_seq {4 if padded else 3}" in forward.disclose().steps


def test_a_row_of_a_verify_is_the_decode_of_that_token(model, forward, alone, batch):
    rows = bits(forward.verify_batch(batch, [TOKENS, TOKENS[:2], TOKENS]))
    expected = [*alone[0], *alone[1][:2], *alone[2]]
    assert all(torch.equal(a, b) for a, b in zip(rows, expected, strict=True))
    for sequence in batch:
        forward.commit(sequence, 2)
    forward.rewind(batch[0], 1)
    again = bits(forward.verify(batch[0], [TOKENS[2], 1, 2]))
    assert torch.equal(again[0], alone[0][2])
    forward.commit(batch[0], 1)


def test_a_commit_needs_its_verify(forward, batch):
    with pytest.raises(ValueError, match="commit of 1"):
        forward.commit(batch[0], 1)
    forward.verify(batch[0], TOKENS)
    with pytest.raises(ValueError, match="commit of 4"):
        forward.commit(batch[0], 4)


def test_the_greedy_choices_and_the_slots_are_disclosed(forward, batch):
    logits = forward.decode_batch(batch, TOKENS)
    bound = forward._last
    assert bound.tokens_S1[:3, 0].tolist() == logits.float().argmax(dim=1).tolist()
    assert forward.disclose().slots["multi_seq 4"] == ((0, 1, 2),)


def test_scattered_blocks_are_not_adjacent(model):
    sequences = [model.open() for _ in range(3)]
    model.pool.reserve_scattered(sequences, [40, 20, 33])
    assert [len(sequence.blocks) for sequence in sequences] == [3, 2, 3]
    held = sequences[0].blocks
    assert all(b - a > 1 for a, b in pairwise(held))
    for sequence in reversed(sequences):
        model.close(sequence)
