"""How many rows a slot may verify: the deeper the batch, the fewer drafts (diff.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["DRAFT_LADDER", "capped", "slot_capacity"]

DRAFT_LADDER = ((4, 3), (8, 3), (16, 1), (32, 1))
"""(sequences, drafts of each): up to so many sequences, so many drafts each."""
DISPATCH_CAP = 32
"""Sequences that may speculate at once."""
NUM_DRAFTS = 3


def slot_capacity(slot: int) -> int:
    """Rows K of a slot: its drafts at any batch that reaches it, and the committed token."""
    allowed = [_drafts_at(count) for count in range(slot + 1, DISPATCH_CAP + 1)]
    return 1 + min(max(allowed, default=1), NUM_DRAFTS)


def _drafts_at(num_sequences: int) -> int:
    return next(drafts for rung, drafts in DRAFT_LADDER if num_sequences <= rung)


def capped(widths: Sequence[int]) -> tuple[int, ...]:
    """The widths of sequences in slots 0, 1, ..., each at most what its slot allows."""
    return tuple(min(width, slot_capacity(slot)) for slot, width in enumerate(widths))
