"""Which sequence each row of a tried step belongs to, and where its KV blocks lie: scattered.

Shapes: R rows, B block-table columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from metpipe.circuit.vocabulary import MODES

__all__ = ["StepLayout", "lay_out", "sequence_widths"]

STARTS = (0, 15, 16, 1, 33, 17, 47, 250)
"""Tokens a sequence holds before the step: none, around the ends of blocks of 16, and many."""
VERIFY_WIDTH = 3


@dataclass(frozen=True, slots=True)
class StepLayout:
    """The step's inputs, and which pool rows hold committed tokens or take new ones."""

    tensors: Mapping[str, torch.Tensor]
    """step.NAME -> i32"""
    block_size: int
    num_blocks: int
    """the last is the dummy, and the one before it nobody owns either"""
    num_slots: int
    """the last is the dummy"""
    num_snapshots: int
    """the last is no row's"""
    committed: torch.Tensor
    """bool [pool rows]: written by earlier steps"""
    current: torch.Tensor
    """bool [pool rows]: the step's own tokens"""

    @property
    def most_tokens(self) -> int:
        """Tokens that a row of the block table has room for."""
        return self.tensors["block_table"].shape[1] * self.block_size

    @property
    def max_position(self) -> int:
        """The highest position of a row."""
        return int(self.tensors["positions"].max())


@dataclass(slots=True)
class _Rows:
    """A step's inputs as they are gathered, sequence by sequence, and the pool rows they reach."""

    block_size: int
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    table: list[list[int]] = field(default_factory=list)
    committed: list[int] = field(default_factory=list)
    current: list[int] = field(default_factory=list)

    def append(
        self, start: int, width: int, slot: int, blocks: list[int], padding: list[int]
    ) -> None:
        """A sequence of `start` tokens that gets `width` rows more; `padding` fills its table."""
        for position in range(start + width):
            row = blocks[position // self.block_size] * self.block_size + position % self.block_size
            (self.committed if position < start else self.current).append(row)
        self.positions += range(start, start + width)
        self.slots += [slot] * width
        self.table += [blocks + padding] * width


def lay_out(mode: str, rows: int, block_size: int, vocab_size: int) -> StepLayout:
    """A step of `rows` rows: one sequence each, one for all, or three rows a sequence."""
    widths = sequence_widths(mode, rows)
    starts = [STARTS[(index + rows) % len(STARTS)] for index in range(len(widths))]
    needed = [
        -(-(start + width) // block_size) for start, width in zip(starts, widths, strict=True)
    ]
    num_blocks = sum(needed) + 2
    g = torch.Generator().manual_seed(rows)
    shuffled = torch.randperm(num_blocks - 2, generator=g).tolist()
    found = _Rows(block_size)
    for index, (start, width, count) in enumerate(zip(starts, widths, needed, strict=True)):
        blocks = [shuffled.pop() for _ in range(count)]
        padding = [num_blocks - 1] * (max(needed) + 1 - count)
        found.append(start, width, len(widths) - 1 - index, blocks, padding)
    return StepLayout(
        _tensors(found, widths, vocab_size, g),
        block_size,
        num_blocks,
        num_slots=len(widths) + 1,
        num_snapshots=rows - len(widths) + 1,
        committed=_mask(found.committed, num_blocks * block_size),
        current=_mask(found.current, num_blocks * block_size),
    )


def _tensors(
    found: _Rows, widths: list[int], vocab_size: int, g: torch.Generator
) -> dict[str, torch.Tensor]:
    """step.NAME -> i32."""
    return {
        "token_ids": _token_ids(sum(widths), vocab_size, g),
        "positions": torch.tensor(found.positions, dtype=torch.int32),
        "slots": torch.tensor(found.slots, dtype=torch.int32),
        "block_table": torch.tensor(found.table, dtype=torch.int32),
        "snapshots": torch.tensor(_snapshots(widths, g), dtype=torch.int32),
    }


def sequence_widths(mode: str, rows: int) -> list[int]:
    """Rows of each sequence."""
    if MODES[mode].sequences == "1" or mode == "verify":
        return [rows]
    if mode != "verify_batch":
        return [1] * rows
    whole, rest = divmod(rows, VERIFY_WIDTH)
    return [VERIFY_WIDTH] * whole + ([rest] if rest else [])


def _token_ids(rows: int, vocab_size: int, g: torch.Generator) -> torch.Tensor:
    """The last id, the first, then any."""
    ids = torch.randint(vocab_size, (rows,), generator=g, dtype=torch.int32)
    ids[0], ids[1:2] = vocab_size - 1, 0
    return ids


def _snapshots(widths: list[int], g: torch.Generator) -> list[int]:
    """As in a verify: all but a sequence's last row leave their states, here in a mixed order."""
    order = torch.randperm(sum(widths) - len(widths), generator=g).tolist()
    found: list[int] = []
    for width in widths:
        found += [*(order.pop() for _ in range(width - 1)), -1]
    return found


def _mask(rows: list[int], size: int) -> torch.Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[rows] = True
    return mask
