"""How many rows a slot may verify: the deeper the batch, the fewer drafts (diff.md 3.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["DRAFT_LADDER", "MAX_SPECULATING", "Capacity"]

DRAFT_LADDER = ((4, 3), (8, 3), (16, 1), (32, 1))
"""(sequences, drafts of each): up to so many sequences, so many drafts each; beyond, the last."""
MAX_SPECULATING = 32
"""Sequences that may speculate at once where serve.mtp_max_seqs does not say: met's own number."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the serve flags allow."""

    num_drafts: int
    """serve.num_drafts"""
    max_speculating: int = MAX_SPECULATING
    """serve.mtp_max_seqs"""

    def rows(self, slot: int) -> int:
        """Rows K of a slot: its drafts at any batch that reaches it, and the committed token."""
        reached = range(slot + 1, max(self.max_speculating, slot + 1) + 1)
        drafts = max(_drafts_at(count) for count in reached)
        return 1 + max(1, min(drafts, self.num_drafts))

    def capped(self, widths: Sequence[int], slots: Sequence[int]) -> tuple[int, ...]:
        """The widths of sequences in these slots, each at most what its slot allows."""
        return tuple(min(width, self.rows(slot)) for width, slot in zip(widths, slots, strict=True))


def _drafts_at(num_sequences: int) -> int:
    allowed = [drafts for rung, drafts in DRAFT_LADDER if num_sequences <= rung]
    return allowed[0] if allowed else DRAFT_LADDER[-1][1]
