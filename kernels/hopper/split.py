"""Moves: a head-by-head split, and rows side by side. No arithmetic, so bits stay as they are."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import bind
from .overlap import enter

__all__ = ["concat", "split_heads"]

BLOCK = 512


@kernel
def _split_heads(both, first, second, dim, head_dim, BLOCK: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < dim
    source = both + row * 2 * dim + i // head_dim * 2 * head_dim + i % head_dim
    tl.store(first + row * dim + i, tl.load(source, mask=here), mask=here)
    tl.store(second + row * dim + i, tl.load(source + head_dim, mask=here), mask=here)


@kernel
def _concat(first, second, y, one, other, BLOCK: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    left, right = i < one, (i >= one) & (i < one + other)
    value = tl.load(first + row * one + i, mask=left, other=0.0)
    value = tl.where(left, value, tl.load(second + row * other + i - one, mask=right, other=0.0))
    tl.store(y + row * (one + other) + i, value, mask=left | right)


def split_heads(
    *, both: torch.Tensor, first: torch.Tensor, second: torch.Tensor, head_dim: int
) -> object:
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
        dim,
        head_dim,
        BLOCK,
    )
    return bind(_split_heads, (rows, triton.cdiv(dim, BLOCK)), arguments)


def concat(*, first: torch.Tensor, second: torch.Tensor, y: torch.Tensor) -> object:
    """Rows of `first` beside rows of `second`, into y [rows, both widths]; bf16."""
    rows, one = matrix("first", first)
    other = matrix("second", second)[1]
    disjoint({"y": y}, {"first": first, "second": second})
    arguments = (
        bf16("first", first, (rows, one)),
        bf16("second", second, (rows, other)),
        bf16("y", y, (rows, one + other)),
        one,
        other,
        BLOCK,
    )
    return bind(_concat, (rows, triton.cdiv(one + other, BLOCK)), arguments)
