"""Rows that share a state slot: the first of them takes all of them through the state, in order."""

from __future__ import annotations

import triton.language as tl

from .jit import device

__all__ = ["is_first", "last_row"]


@device
def is_first(slots, row, slot, ROWS: tl.constexpr):
    """Whether no row before this one has its slot."""
    i = tl.arange(0, ROWS)
    same = tl.load(slots + i, mask=i < row, other=-1) == slot
    return tl.sum(same.to(tl.int32)) == 0


@device
def last_row(slots, rows, slot, ROWS: tl.constexpr):
    """The last row that has the slot."""
    i = tl.arange(0, ROWS)
    same = tl.load(slots + i, mask=i < rows, other=-1) == slot
    return tl.max(tl.where(same, i, -1))
