"""A sequence saved as a record, and restored in another slot and other blocks."""

from __future__ import annotations

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.spilling import restore, save
from tests.engine.opened import opened

CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())
PROMPT = list(range(70, 91))


@pytest.fixture(scope="module")
def model():
    return opened(slots=3, blocks=60)


@pytest.fixture
def forward(model):
    forward = model.forward(CIRCUIT)
    yield forward
    forward.close()


def bits(logits):
    return logits.clone().view(torch.int16)


def test_what_is_restored_goes_on_with_the_same_bits(model, forward):
    old = model.open()
    forward.prefill(old, PROMPT)
    record = save(model, old)
    expected = [bits(forward.decode(old, token)) for token in (65, 66)]
    new = model.open()
    restore(model, new, record)
    assert new.blocks != old.blocks
    assert new.slot != old.slot
    for pool in model.states.values():
        pool[[block * 16 + i for block in old.blocks for i in range(16)]] = float("nan")
    found = [bits(forward.decode(new, token)) for token in (65, 66)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    model.close(new)
    model.close(old)


def test_the_record_holds_committed_tokens_alone(model, forward):
    sequence = model.open(reserve=100)
    forward.prefill(sequence, PROMPT)
    record = save(model, sequence)
    # two u64, then 2 layers x 2 sides x 21 tokens x 24 elements of bf16
    assert len(record) == 16 + 2 * 2 * 21 * 24 * 2
    block = sequence.blocks[-1]
    model.states["l0.attn.k"][block * 16 : block * 16 + 16] = 5.0
    assert torch.equal(save(model, sequence), record)
    model.close(sequence)


@pytest.mark.parametrize("change", ["short", "long"])
def test_a_record_of_another_size_is_refused(model, forward, change):
    sequence = model.open()
    forward.prefill(sequence, PROMPT)
    record = save(model, sequence)
    model.close(sequence)
    other = record[:-1] if change == "short" else torch.cat([record, record[:1]])
    fresh = model.open()
    with pytest.raises(ValueError, match="bytes"):
        restore(model, fresh, other)
    model.close(fresh)
