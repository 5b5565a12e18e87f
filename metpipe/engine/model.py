"""A loaded model: weights, pools, step inputs and kernel sets, from which forwards are made.

Shapes: T tokens a pool holds, E elements per token, P positions, R rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from metpipe.circuit import Circuit, Node
from metpipe.engine.allocator import Allocator
from metpipe.engine.forward import Forward
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.pools import Sequence, SequencePool
from metpipe.engine.rope_tables import RopeSpec, rope_spec, rope_tables
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.step_inputs import StepInputs, table_columns
from metpipe.engine.weights import Weights

__all__ = ["Model", "PoolSizes", "allocate_states", "pool_shapes"]

NAN_BF16 = 0x7FC0
"""New KV pools hold NaN: a read of a position that nobody wrote shows in every logit."""


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """What the pools and step buffers are made for. The last block is the dummy."""

    num_blocks: int
    num_slots: int
    block_size: int
    max_seq_len: int
    max_prefill_rows: int
    max_rows: int
    max_sequences: int


@dataclass(slots=True)
class Model:
    """Everything that forwards share. Forwards own their programs and arenas."""

    name: str
    config: Mapping[str, object]
    circuit: Circuit
    sets: KernelSets
    weights: Weights
    states: Mapping[str, torch.Tensor]
    pool: SequencePool
    step: StepInputs
    sizes: PoolSizes
    allocator: Allocator
    _rope: dict[RopeSpec, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self.circuit.dims["vocab"]

    def open(self, reserve: int = 0) -> Sequence:
        """A fresh sequence on the next free slot, with blocks for `reserve` tokens."""
        sequence = self.pool.open()
        self.pool.reserve(sequence, reserve)
        return sequence

    def close(self, sequence: Sequence) -> None:
        """Give the sequence's blocks and slot back."""
        self.pool.close(sequence)

    def forward(self, select: ForwardSelect) -> Forward:
        """A forward with programs of its own; close it to free its buffers."""
        from metpipe.engine.runners import CircuitRunner, LegacyRunner

        runner = LegacyRunner(self) if select.forward == "legacy" else CircuitRunner(self, select)
        return Forward(
            name=select.name,
            kind=select.forward,
            runner=runner,
            pool=self.pool,
            step=self.step,
            max_prefill_rows=self.sizes.max_prefill_rows,
        )

    def rope_of(self, node: Node) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine tables of a rope node, each f32 [P, rotary_dim / 2]; made once."""
        return self.rope(rope_spec(json.loads(node.params["rope"]), int(node.params["rotary_dim"])))

    def rope(self, spec: RopeSpec) -> tuple[torch.Tensor, torch.Tensor]:
        """The tables of one spec; made once."""
        if spec not in self._rope:
            arrays = rope_tables(spec, self.sizes.max_seq_len)
            shape = arrays[0].shape
            pair = tuple(
                self.allocator.take("tables", f"rope {name}", shape, torch.float32)
                for name in ("cos", "sin")
            )
            for tensor, array in zip(pair, arrays, strict=True):
                tensor.copy_(torch.from_numpy(array))
            self._rope[spec] = (pair[0], pair[1])
        return self._rope[spec]

    def state_digests(self, sequence: Sequence) -> dict[str, str]:
        """State -> 128-bit hex over the positions that the sequence has committed."""
        return self._digests(sequence.blocks, sequence.length)

    def unowned_digests(self, owner: Sequence) -> dict[str, str]:
        """State -> 128-bit hex over every block that neither `owner` holds nor is the dummy."""
        held = set(owner.blocks)
        free = [block for block in range(self.sizes.num_blocks - 1) if block not in held]
        return self._digests(free, len(free) * self.sizes.block_size)

    def _digests(self, blocks: list[int], num_tokens: int) -> dict[str, str]:
        """Hash the first `num_tokens` positions of these blocks, in each state's pool."""
        table = torch.tensor(blocks, dtype=torch.int32)
        hash_rows, block_size = (
            self.sets.builtin.functions["hash.hash128_rows"],
            self.sizes.block_size,
        )
        return {
            name: hex_of(
                hash_rows(pool=pool_TE, block_table=table, count=num_tokens, block_size=block_size)
            )
            for name, pool_TE in self.states.items()
        }

    def hash_bytes(self, content: torch.Tensor) -> str:
        """128-bit hex of a tensor's bytes, by the kernel set's own hash."""
        return hex_of(self.sets.builtin.functions["hash.hash128"](content))


def hex_of(digest: int) -> str:
    """A 128-bit digest as 32 hex digits."""
    return f"{digest:032x}"


def allocate_states(
    circuit: Circuit, allocator: Allocator, sizes: PoolSizes
) -> dict[str, torch.Tensor]:
    """State id -> its pool: paged KV [blocks * block_size, E] bf16, filled with NaN."""
    states = {}
    for state_id, shape in pool_shapes(circuit, sizes).items():
        pool_TE = allocator.take("kv", state_id, shape, torch.bfloat16)
        pool_TE.view(torch.int16).fill_(NAN_BF16)
        states[state_id] = pool_TE
    return states


def pool_shapes(circuit: Circuit, sizes: PoolSizes) -> dict[str, tuple[int, int]]:
    """State id -> [T, E] of its pool."""
    return {
        state.id: (sizes.num_blocks * sizes.block_size, state.elements)
        for state in circuit.states.values()
        if state.kind == "paged_kv" and state.section == "main"
    }


def allocate_step(allocator: Allocator, sizes: PoolSizes) -> StepInputs:
    """The step buffers for these sizes."""
    columns = table_columns(sizes.max_seq_len, sizes.block_size)
    return StepInputs.allocate(allocator, sizes.max_rows, columns, sizes.num_blocks - 1)
