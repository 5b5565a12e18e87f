"""The planned size of a swapped sequence against the record that the engine makes of one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from metpipe.circuit import Select
from metpipe.engine.allocation import allocate_states
from metpipe.engine.allocator import Allocator
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.pools import SequencePool
from metpipe.engine.spilling import save
from metpipe.memory import Planned, Workload, evaluate
from tests.circuit.hybrids import TINY, circuit_of

HYBRID = circuit_of(TINY["qwen3_5"])
SIZES = PoolSizes(
    num_blocks=20,
    num_slots=2,
    block_size=16,
    max_seq_len=128,
    max_prefill_rows=16,
    runs=(("decode", 1), ("prefill", 16)),
    snapshot_rows=3,
)


def record_of(circuit, sizes, tokens, drafted):
    """What the engine saves of a sequence of so many tokens."""
    pools = allocate_states(circuit, Allocator(torch.device("cpu")), sizes)
    pool = SequencePool(sizes.num_blocks, sizes.num_slots, sizes.block_size)
    sequence = pool.open()
    pool.reserve(sequence, tokens)
    sequence.length, sequence.draft_length = tokens, drafted
    return save(SimpleNamespace(circuit=circuit, states=pools, sizes=sizes), sequence)


@pytest.mark.parametrize("tokens", [2, 16, 37])
@pytest.mark.parametrize("drafts", [None, 3])
def test_a_record_is_as_long_as_planned(tiny, cpu_set, tokens, drafts):
    runs = SIZES.runs if drafts is None else (*SIZES.runs, ("draft", 1))
    drafted = 0 if drafts is None else tokens
    record = record_of(HYBRID, replace(SIZES, runs=runs), tokens, drafted)
    flags = {"speculative": drafts is not None, "num_drafts": drafts, "high_speed_swap": True}
    point = replace(
        tiny,
        planned=Planned(HYBRID, cpu_set, Select.all()),
        workload=Workload(tokens - 1, 1, 1),
        serve=replace(tiny.serve, **flags),
    )
    assert evaluate(point).counts.host == len(record)
