"""Which widths are tried: every rung of the padding ladder, and one row more and less."""

from __future__ import annotations

from metpipe.circuit import LADDER

__all__ = ["is_rung", "widths_up_to"]


def widths_up_to(limit: int) -> tuple[int, ...]:
    """Widths from 2 to `limit` at which the padded step changes, in order."""
    around = {width for rung in LADDER for width in (rung - 1, rung, rung + 1)}
    return tuple(sorted(width for width in around if 2 <= width <= limit))


def is_rung(width: int) -> bool:
    """Whether a step of this width is padded by no row."""
    return width in LADDER
