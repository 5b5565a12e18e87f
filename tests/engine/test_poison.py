"""State is written over between runs: nothing that a run left is there for the next one."""

from __future__ import annotations

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.selection import ForwardSelect
from tests.engine.opened import CONFIG, opened
from tests.stages.planted.hybrids import HYBRID

CIRCUIT = ForwardSelect("circuit", "circuit", Select.all())


def bytes_of(model):
    return {name: pool.clone().view(torch.uint8) for name, pool in model.states.items()}


@pytest.mark.parametrize("config", [CONFIG, HYBRID["config"]], ids=["dense", "hybrid"])
@pytest.mark.parametrize("slots", [1, 3])
def test_poisoned_again_every_byte_is_the_poison(config, slots):
    """Whatever was handed out in between: the last slots and blocks too, and the dummies."""
    model = opened(config, slots=3, blocks=13, runs=(("multi_seq", 4),))
    model.poison()
    poison = bytes_of(model)
    forward = model.forward(CIRCUIT)
    for _ in range(2):
        sequences = [model.open() for _ in range(slots)]
        for one in sequences:
            forward.prefill(one, list(range(70, 87)))
        forward.decode_batch(sequences, [71] * slots)  # padded: the dummies are written
        moved = bytes_of(model)
        assert all(not torch.equal(moved[name], poison[name]) for name in poison)
        for one in reversed(sequences):
            model.close(one)
        model.poison()
        again = bytes_of(model)
        assert all(torch.equal(again[name], poison[name]) for name in poison)
    forward.close()
