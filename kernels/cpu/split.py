"""Moves: a head-by-head split, and rows side by side. No arithmetic, so bits stay as they are."""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import Launch, bind
from .memory import copy_bytes, load_i64

__all__ = ["concat", "split_heads"]


@kernel
def _split_heads(arguments, chunk, chunks):
    both = load_i64(arguments, 0)
    first = load_i64(arguments, 1)
    second = load_i64(arguments, 2)
    heads = load_i64(arguments, 3)
    size = 2 * load_i64(arguments, 4)
    for head in range(chunk * heads // chunks, (chunk + 1) * heads // chunks):
        copy_bytes(first + head * size, both + 2 * head * size, size)
        copy_bytes(second + head * size, both + (2 * head + 1) * size, size)


@kernel
def _concat(arguments, chunk, chunks):
    first = load_i64(arguments, 0)
    second = load_i64(arguments, 1)
    y = load_i64(arguments, 2)
    rows = load_i64(arguments, 3)
    one = 2 * load_i64(arguments, 4)
    other = 2 * load_i64(arguments, 5)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        out = y + row * (one + other)
        copy_bytes(out, first + row * one, one)
        copy_bytes(out + one, second + row * other, other)


def split_heads(
    *, both: torch.Tensor, first: torch.Tensor, second: torch.Tensor, head_dim: int
) -> Launch:
    """Splits `both`, of which each head is first||second (an attention's query and gate); bf16.

    both: [rows, heads * 2 head_dim]; first, second: [rows, heads * head_dim].
    """
    rows, dim = matrix("first", first)
    if dim % head_dim:
        raise ValueError(f"first has {dim} columns: not whole heads of {head_dim}")
    disjoint({"first": first, "second": second}, {"both": both})
    arguments = (
        bf16("both", both, (rows, 2 * dim)),
        bf16("first", first, (rows, dim)),
        bf16("second", second, (rows, dim)),
        rows * (dim // head_dim),
        head_dim,
    )
    return bind(_split_heads, arguments, (both, first, second), 4 * rows * dim)


def concat(*, first: torch.Tensor, second: torch.Tensor, y: torch.Tensor) -> Launch:
    """Rows of `first` beside rows of `second`, into y [rows, both widths]; bf16."""
    rows, one = matrix("first", first)
    other = matrix("second", second)[1]
    disjoint({"y": y}, {"first": first, "second": second})
    arguments = (
        bf16("first", first, (rows, one)),
        bf16("second", second, (rows, other)),
        bf16("y", y, (rows, one + other)),
        rows,
        one,
        other,
    )
    return bind(_concat, arguments, (first, second, y), 2 * rows * (one + other))
