"""How many drafts a verify has when so many sequences are active (section 10)."""

from __future__ import annotations

__all__ = ["drafts_at"]

LADDER = ((4, 3), (8, 3), (16, 1), (32, 1))
"""Up to so many active sequences, each may have so many drafts."""


def drafts_at(active: int, num_drafts: int) -> int:
    """Drafts of each of `active` sequences: the first rung that holds them, past the end the last.

    Between 1 and `num_drafts`; 0 when nothing is drafted.
    """
    if num_drafts == 0:
        return 0
    most = next((drafts for sequences, drafts in LADDER if active <= sequences), LADDER[-1][1])
    return min(most, num_drafts)
