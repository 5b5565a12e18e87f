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

__all__ = ["RowRun", "StepInputs", "step_bytes", "table_columns"]

I32 = npt.NDArray[np.int32]
I32_BYTES = 4
NONE = -1
"""A padding row's token, and the snapshot row of a row that is not kept."""


def table_columns(max_seq_len: int, block_size: int) -> int:
    """Block-table columns for a sequence of `max_seq_len` tokens and the token after it."""
    return -(-max_seq_len // block_size) + 1


def step_bytes(max_rows: int, columns: int) -> int:
    """Bytes of the buffers that `StepInputs.allocate` takes."""
    return I32_BYTES * max_rows * (4 + columns)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Consecutive tokens of one sequence in a step, from `position` on."""

    sequence: Sequence
    tokens: Items[int]
    position: int
    first_snapshot: int | None = None
    """where the states after all rows but the last are kept; None: nowhere"""


@dataclass(slots=True)
class StepInputs:
    """Token ids, positions, slots, snapshot rows (i32 [R]) and block tables (i32 [R, B])."""

    token_ids_R: torch.Tensor
    positions_R: torch.Tensor
    slots_R: torch.Tensor
    snapshots_R: torch.Tensor
    block_table_RB: torch.Tensor
    dummy_block: int
    dummy_slot: int
    _ids: I32 = field(init=False)
    _positions: I32 = field(init=False)
    _slots: I32 = field(init=False)
    _snapshots: I32 = field(init=False)
    _table: I32 = field(init=False)

    def __post_init__(self) -> None:
        self._ids = self.token_ids_R.numpy()
        self._positions = self.positions_R.numpy()
        self._slots = self.slots_R.numpy()
        self._snapshots = self.snapshots_R.numpy()
        self._table = self.block_table_RB.numpy()

    @classmethod
    def allocate(
        cls, allocator: Allocator, max_rows: int, columns: int, dummy_block: int, dummy_slot: int
    ) -> StepInputs:
        """Buffers for steps of at most `max_rows` rows."""
        take = allocator.take
        return cls(
            take("step", "token_ids", (max_rows,), torch.int32),
            take("step", "positions", (max_rows,), torch.int32),
            take("step", "slots", (max_rows,), torch.int32),
            take("step", "snapshots", (max_rows,), torch.int32),
            take("step", "block_table", (max_rows, columns), torch.int32),
            dummy_block,
            dummy_slot,
        )

    @property
    def max_rows(self) -> int:
        """Rows of the widest step these buffers serve."""
        return self.token_ids_R.shape[0]

    def fill(self, runs: Items[RowRun], rows: int) -> None:
        """The runs' rows one after another, then padding up to `rows`.

        A padding row has no token (its embedding is zero), and the dummy slot and block.
        """
        at = 0
        for run in runs:
            at = self._fill_run(run, at)
        self._ids[at:rows] = NONE
        self._positions[at:rows] = 0
        self._slots[at:rows] = self.dummy_slot
        self._snapshots[at:rows] = NONE
        self._table[at:rows] = self.dummy_block

    def _fill_run(self, run: RowRun, at: int) -> int:
        count = len(run.tokens)
        part = slice(at, at + count)
        self._ids[part] = run.tokens
        self._positions[part] = np.arange(run.position, run.position + count, dtype=np.int32)
        self._slots[part] = run.sequence.slot
        self._table[part] = self.dummy_block
        self._table[part, : len(run.sequence.blocks)] = run.sequence.blocks
        self._snapshots[part] = NONE
        if run.first_snapshot is not None:
            kept = np.arange(run.first_snapshot, run.first_snapshot + count - 1, dtype=np.int32)
            self._snapshots[at : at + count - 1] = kept
        return at + count
