"""The scratch buffer of the legacy arena: the largest of four uses (section 15.2)."""

from __future__ import annotations

from metpipe.memory.met.shape import ModelShape

__all__ = ["ceil_div", "rounded", "scratch_bytes"]

FLOOR = 65536
STREAMS = 8
"""Sequences of a batched prefill that staging is sized for."""
DEFAULT_TABLE = 256


def scratch_bytes(shape: ModelShape, tokens: int, rows: int, max_seq_len: int, block: int) -> int:
    """Bytes for `tokens` of a prefill and a decode of `rows` sequences."""
    table = max_seq_len // block + 1 if block else DEFAULT_TABLE
    top_k = shape.top_k if shape.experts else 0
    decode = 32768 + max(256 * 24 + 256 * table * 4, 24 * rows + 4 * rows * table)
    prefill = 8 * tokens * top_k + _prefill_metadata(shape.position_axes, tokens, table)
    return max(FLOOR, prefill, decode, _staging(shape.position_axes, tokens, top_k))


def _prefill_metadata(axes: int, tokens: int, table: int) -> int:
    """Positions (i32 an axis), slots (i64), the block table (i32) and one length."""
    positions = rounded(4 * tokens * axes, 8)
    slots = rounded(positions + 8 * tokens, 4)
    return rounded(slots + 4 * table, 4) + 4


def _staging(axes: int, tokens: int, top_k: int) -> int:
    """A prefill of several sequences at once: expert ids, each stream's metadata, then its own."""
    each = max(1, ceil_div(tokens, STREAMS))
    every = STREAMS * each
    experts = rounded(8 * every * top_k, 64)
    streams = STREAMS * rounded(rounded(4 * each * axes, 8) + 8 * each, 64)
    joined = axes * rounded(4 * every, 8) + rounded(8 * every, 8)
    starts = rounded(4 * (STREAMS + 1), 8) + rounded(4 * STREAMS, 8)
    return experts + streams + joined + 2 * 64 + starts + 64


def ceil_div(number: int, divisor: int) -> int:
    """Their quotient, rounded up."""
    return -(-number // divisor)


def rounded(number: int, multiple: int) -> int:
    """The next multiple."""
    return ceil_div(number, multiple) * multiple
