"""The ladder of batch widths: a step of n sequences is padded to a few shapes (diff.md 2.10)."""

from __future__ import annotations

__all__ = ["LADDER", "padded_rows"]

LADDER = (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128)


def padded_rows(num_sequences: int) -> int:
    """The smallest rung that holds them; the number itself above the ladder, and for one."""
    if num_sequences == 1:
        return 1
    return next((rung for rung in LADDER if rung >= num_sequences), num_sequences)
