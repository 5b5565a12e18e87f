"""A loaded model: weights, pools, step inputs and kernel sets, from which forwards are made.

Shapes: S sequences, D hidden, R rows of logits, V vocabulary.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from metpipe.circuit import Circuit, Node
from metpipe.engine.allocator import Allocator
from metpipe.engine.forward import Forward
from metpipe.engine.kernel_sets import KernelSets
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.pools import Sequence, SequencePool
from metpipe.engine.rope_tables import RopeSpec, rope_spec, rope_tables
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.state_digests import StateDigests
from metpipe.engine.step_inputs import StepInputs
from metpipe.engine.weights import Weights

__all__ = ["Model"]

POISONED_KEY = 64.0
"""Far beyond any key, exact in bf16."""
POISONED_STATE = 0x7FA00000
"""A signaling NaN in f32: a kernel that updates it in place leaves a quiet one, which is seen to
have moved; a quiet one's bits would stay."""


@dataclass(slots=True)
class Model:
    """Everything that forwards share. Forwards own their programs and arenas."""

    name: str
    config: Mapping[str, object]
    circuit: Circuit
    sets: KernelSets
    weights: Weights
    states: Mapping[str, torch.Tensor]
    snapshots: Mapping[str, torch.Tensor]
    """recurrent state id -> [snapshot rows, elements]: states between the rows of a verify"""
    drafter_hidden_SD: torch.Tensor | None
    """the hidden row that each sequence's next draft starts from; None without a draft head"""
    pool: SequencePool
    step: StepInputs
    sizes: PoolSizes
    allocator: Allocator
    digests: StateDigests = field(init=False)
    fresh: dict[object, Any] = field(default_factory=dict)
    """what is known of the state right after poison, by who owns what; of `distrust` on, nothing"""
    _poisoned: bool = False
    """all of the state is poison, but for what was handed out since"""
    _rope: dict[RopeSpec, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.digests = StateDigests.of_model(
            self.circuit, self.states, self.sets.builtin.functions, self.sizes.block_size
        )

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self.circuit.dims["vocab"]

    def open(self, reserve: int = 0) -> Sequence:
        """A fresh sequence on the next free slot, its state zero, with blocks for `reserve`."""
        sequence = self.pool.open()
        self.zero_slot(sequence.slot)
        self.pool.reserve(sequence, reserve)
        return sequence

    def zero_slot(self, slot: int) -> None:
        """The recurrent state that every sequence starts from."""
        for name, pool in self.states.items():
            if self.circuit.states[name].kind == "recurrent":
                pool[slot].zero_()

    def poison(self) -> None:
        """Write over all state, so that no right bytes of an earlier run are there to be read.

        NaN, which a weight of zero does not hide (in a recurrent state one that no arithmetic
        leaves as it is); a number for keys, whose NaN a masked maximum
        may drop. What no sequence was handed since the last time is as it was then, unless
        `distrust` says otherwise. Opening a sequence zeroes its slot again. No sequence
        may be open.
        """
        blocks, slots = self.pool.blocks, self.pool.slots
        for name, pool in self.states.items():
            is_slot = self.circuit.states[name].kind == "recurrent"
            unit = 1 if is_slot else self.sizes.block_size
            used = (slots if is_slot else blocks).taken_below if self._poisoned else len(pool)
            is_key = self.circuit.states[name].local.endswith(".k")
            for part in (pool[: used * unit], pool[-unit:]):  # the last is the dummy's
                if is_slot:
                    part.view(torch.int32).fill_(POISONED_STATE)
                else:
                    part.fill_(POISONED_KEY if is_key else math.nan)
        for pool in self.snapshots.values():
            pool.fill_(math.nan)
        if self.drafter_hidden_SD is not None:
            self.drafter_hidden_SD.fill_(math.nan)
        blocks.taken_below = slots.taken_below = 0
        self._poisoned = True

    def distrust(self) -> None:
        """What nobody was handed has been written: poison all of it the next time."""
        self._poisoned = False
        self.fresh.clear()

    def close(self, sequence: Sequence) -> None:
        """Give the sequence's blocks and slot back."""
        self.pool.close(sequence)

    def forward(self, select: ForwardSelect) -> Forward:
        """A forward with programs of its own; close it to free its buffers."""
        from metpipe.engine.runners import CircuitRunner, LegacyRunner

        begin = time.perf_counter()
        runner = LegacyRunner(self) if select.forward == "legacy" else CircuitRunner(self, select)
        return Forward(
            name=select.name,
            kind=select.forward,
            runner=runner,
            model=self,
            graphs=select.graphs,
            seconds=time.perf_counter() - begin,
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
        """State -> 128-bit hex over what the sequence has committed."""
        return self.digests.of(sequence)

    def unowned_digests(self, *owners: Sequence, dummies: bool = False) -> dict[str, str]:
        """State -> 128-bit hex over every block and slot that no owner holds.

        `dummies`: the block and the slot of padding rows too.
        """
        sizes = self.sizes
        return self.digests.unowned(owners, sizes.num_blocks, sizes.num_slots, dummies=dummies)

    def hash_rows(self, content_RV: torch.Tensor, key: int) -> tuple[str, ...]:
        """128-bit hex of each row's bytes, all in one call."""
        return self.digests.of_rows(content_RV, key)

    def hash_bytes(self, content: torch.Tensor) -> str:
        """128-bit hex of a tensor's bytes, by the kernel set's own hash."""
        there = content.to(self.allocator.device).contiguous()
        return f"{self.sets.builtin.functions['hash.hash128'](there):032x}"
