"""Which sequence each row of a tried step belongs to, and where its KV blocks lie: scattered.

Shapes: R rows, B block-table columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
    def max_position(self) -> int:
        """The highest position of a row."""
        return int(self.tensors["positions"].max())


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
    positions: list[int] = []
    slots: list[int] = []
    table: list[list[int]] = []
    committed: list[int] = []
    current: list[int] = []
    for index, (start, width, count) in enumerate(zip(starts, widths, needed, strict=True)):
        blocks = [shuffled.pop() for _ in range(count)]
        padding = [num_blocks - 1] * (max(needed) + 1 - count)
        for position in range(start + width):
            row = blocks[position // block_size] * block_size + position % block_size
            (committed if position < start else current).append(row)
        positions += range(start, start + width)
        slots += [len(widths) - 1 - index] * width
        table += [blocks + padding] * width
    tensors = {
        "token_ids": _token_ids(rows, vocab_size, g),
        "positions": torch.tensor(positions, dtype=torch.int32),
        "slots": torch.tensor(slots, dtype=torch.int32),
        "block_table": torch.tensor(table, dtype=torch.int32),
        "snapshots": torch.tensor(_snapshots(widths, g), dtype=torch.int32),
    }
    masks = [_mask(found, num_blocks * block_size) for found in (committed, current)]
    return StepLayout(
        tensors,
        block_size,
        num_blocks,
        num_slots=len(widths) + 1,
        num_snapshots=rows - len(widths) + 1,
        committed=masks[0],
        current=masks[1],
    )


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
