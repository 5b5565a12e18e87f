"""What a step reads beside weights and states: buffers that are refilled before each launch.

Shapes: R rows of the widest step, B block-table columns.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.pools import Sequence

__all__ = ["StepInputs", "step_bytes", "table_columns"]

I32 = npt.NDArray[np.int32]
I32_BYTES = 4


def table_columns(max_seq_len: int, block_size: int) -> int:
    """Block-table columns for a sequence of `max_seq_len` tokens and the token after it."""
    return -(-max_seq_len // block_size) + 1


def step_bytes(max_rows: int, columns: int) -> int:
    """Bytes of the buffers that `StepInputs.allocate` takes."""
    return I32_BYTES * max_rows * (3 + columns)


@dataclass(slots=True)
class StepInputs:
    """Token ids, positions, slots (i32 [R]) and block tables (i32 [R, B])."""

    token_ids_R: torch.Tensor
    positions_R: torch.Tensor
    slots_R: torch.Tensor
    block_table_RB: torch.Tensor
    dummy_block: int
    _ids: I32 = field(init=False)
    _positions: I32 = field(init=False)
    _slots: I32 = field(init=False)
    _table: I32 = field(init=False)

    def __post_init__(self) -> None:
        self._ids = self.token_ids_R.numpy()
        self._positions = self.positions_R.numpy()
        self._slots = self.slots_R.numpy()
        self._table = self.block_table_RB.numpy()

    @classmethod
    def allocate(
        cls, allocator: Allocator, max_rows: int, columns: int, dummy_block: int
    ) -> StepInputs:
        """Buffers for steps of at most `max_rows` rows."""
        take = allocator.take
        return cls(
            take("step", "token_ids", (max_rows,), torch.int32),
            take("step", "positions", (max_rows,), torch.int32),
            take("step", "slots", (max_rows,), torch.int32),
            take("step", "block_table", (max_rows, columns), torch.int32),
            dummy_block,
        )

    @property
    def max_rows(self) -> int:
        """Rows of the widest step these buffers serve."""
        return self.token_ids_R.shape[0]

    def fill_run(self, sequence: Sequence, tokens: Items[int]) -> None:
        """Make the leading rows consecutive tokens of one sequence, from its length on."""
        rows = len(tokens)
        self._ids[:rows] = tokens
        self._positions[:rows] = np.arange(sequence.length, sequence.length + rows, dtype=np.int32)
        self._slots[:rows] = sequence.slot
        self._table[:rows] = self.dummy_block
        self._table[:rows, : len(sequence.blocks)] = sequence.blocks
