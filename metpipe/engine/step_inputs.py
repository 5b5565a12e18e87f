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
SINGLES = 4
"""Inputs of one number a row, in front of the block tables."""
STAGINGS = 4
NONE = -1
"""A padding row's token, and the snapshot row of a row that is not kept."""


def table_columns(max_seq_len: int, block_size: int) -> int:
    """Block-table columns for a sequence of `max_seq_len` tokens and the token after it."""
    return -(-max_seq_len // block_size) + 1


def step_bytes(max_rows: int, columns: int) -> int:
    """Bytes of the buffers that `StepInputs.allocate` takes."""
    return I32_BYTES * max_rows * (SINGLES + columns)


@dataclass(frozen=True, slots=True)
class RowRun:
    """Consecutive tokens of one sequence in a step, from `position` on."""

    sequence: Sequence
    tokens: Items[int]
    position: int
    first_snapshot: int | None = None
    """where the states after all rows but the last are kept; None: nowhere"""


@dataclass(slots=True)
class _Staging:
    """The host's side of the buffers: where a step's inputs are written before they are copied."""

    whole: torch.Tensor
    ids: I32
    positions: I32
    slots: I32
    snapshots: I32
    table: I32
    copied: torch.cuda.Event | None = None
    """recorded behind the copy to the device; None where host and device are one"""

    @classmethod
    def over(cls, whole: torch.Tensor, max_rows: int, copied: torch.cuda.Event | None) -> _Staging:
        """The parts of a host tensor laid out as the device's."""
        flat = whole.numpy()
        ids, positions, slots, snapshots = flat[: SINGLES * max_rows].reshape(SINGLES, max_rows)
        table = flat[SINGLES * max_rows :].reshape(max_rows, -1)
        return cls(whole, ids, positions, slots, snapshots, table, copied)


@dataclass(slots=True)
class StepInputs:
    """Token ids, positions, slots, snapshot rows (i32 [R]) and block tables (i32 [R, B]).

    One tensor holds all of them, the tables last, so that a step's inputs are one copy to a GPU:
    from pinned memory, without waiting. Several stagings take turns, since a copy may still be
    under way when the next step is filled.
    """

    whole: torch.Tensor
    max_rows: int
    """rows of the widest step these buffers serve"""
    dummy_block: int
    dummy_slot: int
    _stagings: tuple[_Staging, ...] = field(init=False)
    _turn: int = 0

    def __post_init__(self) -> None:
        if self.whole.is_cpu:
            self._stagings = (_Staging.over(self.whole, self.max_rows, None),)
            return
        self._stagings = tuple(
            _Staging.over(
                torch.zeros(self.whole.shape, dtype=torch.int32, pin_memory=True),
                self.max_rows,
                torch.cuda.Event(),  # type: ignore[no-untyped-call]
            )
            for _ in range(STAGINGS)
        )

    @classmethod
    def allocate(
        cls, allocator: Allocator, max_rows: int, columns: int, dummy_block: int, dummy_slot: int
    ) -> StepInputs:
        """Buffers for steps of at most `max_rows` rows."""
        shape = (max_rows * (SINGLES + columns),)
        whole = allocator.take("step", "inputs", shape, torch.int32)
        return cls(whole, max_rows, dummy_block, dummy_slot)

    @property
    def token_ids_R(self) -> torch.Tensor:
        """The token of each row; -1 for padding."""
        return self._single(0)

    @property
    def positions_R(self) -> torch.Tensor:
        """The place of each row's token in its sequence."""
        return self._single(1)

    @property
    def slots_R(self) -> torch.Tensor:
        """The state slot of each row's sequence."""
        return self._single(2)

    @property
    def snapshots_R(self) -> torch.Tensor:
        """Where the states after each row are kept; -1: nowhere."""
        return self._single(3)

    @property
    def block_table_RB(self) -> torch.Tensor:
        """The KV blocks of each row's sequence."""
        return self.whole[SINGLES * self.max_rows :].view(self.max_rows, -1)

    def _single(self, index: int) -> torch.Tensor:
        return self.whole[index * self.max_rows : (index + 1) * self.max_rows]

    def fill(self, runs: Items[RowRun], rows: int) -> None:
        """The runs' rows one after another, then padding up to `rows`.

        A padding row has no token (its embedding is zero), and the dummy slot and block.
        """
        staging = self._stagings[self._turn]
        self._turn = (self._turn + 1) % len(self._stagings)
        if staging.copied is not None:
            staging.copied.synchronize()  # several steps ago: it has long been copied
        at = 0
        for run in runs:
            at = self._fill_run(staging, run, at)
        staging.ids[at:rows] = NONE
        staging.positions[at:rows] = 0
        staging.slots[at:rows] = self.dummy_slot
        staging.snapshots[at:rows] = NONE
        staging.table[at:rows] = self.dummy_block
        if staging.copied is not None:
            used = SINGLES * self.max_rows + rows * staging.table.shape[1]
            self.whole[:used].copy_(staging.whole[:used], non_blocking=True)
            staging.copied.record()

    def _fill_run(self, staging: _Staging, run: RowRun, at: int) -> int:
        count = len(run.tokens)
        part = slice(at, at + count)
        staging.ids[part] = run.tokens
        staging.positions[part] = np.arange(run.position, run.position + count, dtype=np.int32)
        staging.slots[part] = run.sequence.slot
        staging.table[part] = self.dummy_block
        staging.table[part, : len(run.sequence.blocks)] = run.sequence.blocks
        staging.snapshots[part] = NONE
        if run.first_snapshot is not None:
            kept = np.arange(run.first_snapshot, run.first_snapshot + count - 1, dtype=np.int32)
            staging.snapshots[at : at + count - 1] = kept
        return at + count
