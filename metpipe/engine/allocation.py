"""The pools of a model, taken through its allocator.

Shapes: T tokens a pool holds, E elements per token or slot.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from metpipe.circuit import Circuit
from metpipe.engine.allocator import Allocator
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.step_inputs import StepInputs, table_columns

__all__ = [
    "allocate_drafter",
    "allocate_snapshots",
    "allocate_states",
    "allocate_step",
    "pool_bytes",
    "pool_shapes",
]

NAN_BF16 = 0x7FC0
"""New KV pools hold NaN: a read of a position that nobody wrote shows in every logit."""
BF16_BYTES, F32_BYTES = 2, 4


def allocate_states(
    circuit: Circuit, allocator: Allocator, sizes: PoolSizes
) -> dict[str, torch.Tensor]:
    """State id -> its pool: paged KV [T, E] bf16 of NaN, recurrent [slots + 1, E] f32 of zeros."""
    states = {}
    for state_id, shape in pool_shapes(circuit, sizes).items():
        if circuit.states[state_id].kind == "recurrent":
            states[state_id] = allocator.take("states", state_id, shape, torch.float32).zero_()
        else:
            states[state_id] = allocator.take("kv", state_id, shape, torch.bfloat16)
            states[state_id].view(torch.int16).fill_(NAN_BF16)
    return states


def allocate_snapshots(
    circuit: Circuit, allocator: Allocator, sizes: PoolSizes
) -> dict[str, torch.Tensor]:
    """Recurrent state id -> [snapshot rows, E] f32: NaN until a verify keeps a state there."""
    found = {}
    for state in circuit.states.values():
        if state.kind == "recurrent" and state.section == "main":
            shape = (sizes.snapshot_rows, state.elements)
            owner = f"snapshots of {state.id}"
            found[state.id] = allocator.take("states", owner, shape, torch.float32)
            found[state.id].fill_(float("nan"))
    return found


def allocate_drafter(
    circuit: Circuit, allocator: Allocator, sizes: PoolSizes
) -> torch.Tensor | None:
    """The hidden rows that drafts start from, bf16 [sequences, hidden]; None where none runs."""
    if not sizes.max_draft_rows:
        return None
    shape = (sizes.max_draft_rows, circuit.dims["hidden"])
    return allocator.take("step", "drafter hidden", shape, torch.bfloat16).zero_()


def pool_shapes(circuit: Circuit, sizes: PoolSizes) -> dict[str, tuple[int, int]]:
    """State id -> shape of its pool; the draft head's only where it runs."""
    tokens = sizes.num_blocks * sizes.block_size
    rows = {"paged_kv": tokens, "recurrent": sizes.num_slots + 1}
    return {
        state.id: (rows[state.kind], state.elements)
        for state in circuit.states.values()
        if state.section == "main" or sizes.max_draft_rows
    }


def pool_bytes(circuit: Circuit, shapes: Mapping[str, tuple[int, int]]) -> int:
    """Bytes of pools of these shapes."""
    return sum(
        rows * elements * (F32_BYTES if circuit.states[state].kind == "recurrent" else BF16_BYTES)
        for state, (rows, elements) in shapes.items()
    )


def allocate_step(allocator: Allocator, sizes: PoolSizes) -> StepInputs:
    """The step buffers for these sizes."""
    columns = table_columns(sizes.max_seq_len, sizes.block_size)
    return StepInputs.allocate(
        allocator, sizes.max_rows, columns, sizes.num_blocks - 1, sizes.num_slots
    )
