"""THE product of every linear: one chain of tensor-core steps per output.

Chain: k runs from 0 in steps of sixteen products that the tensor core adds to the float32
accumulator; nothing splits k. Tiles place outputs, the chain of an output stays: other tiles, the
other operand order and more rows gave equal accumulators wherever they were tried (test_linear.py
tries them again). A last step over the end of k is filled up with zeros.
"""

from __future__ import annotations

import triton.language as tl

from .jit import device

__all__ = ["product", "product_of", "tile_columns", "tile_rows"]


@device
def tile_rows(first, R: tl.constexpr, SWAP: tl.constexpr):
    """The rows of a tile, along its own axis of the accumulator."""
    if SWAP:
        rows = first + tl.arange(0, R)[None, :]
    else:
        rows = first + tl.arange(0, R)[:, None]
    return rows


@device
def tile_columns(first, N: tl.constexpr, SWAP: tl.constexpr):
    """The outputs of a tile, along its own axis of the accumulator."""
    if SWAP:
        columns = first + tl.arange(0, N)[:, None]
    else:
        columns = first + tl.arange(0, N)[None, :]
    return columns


@device
def product(
    x, w, row, column, rows, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """float32 x[row ..] . w[column ..]: [R, N], or [N, R] with the weights as the M side (SWAP).

    x: bf16 [rows, k]; w: bf16 [n, k]. EVEN: K divides k.
    """
    r = tile_rows(row, R, SWAP)
    return product_of(x + r.to(tl.int64) * k, r < rows, w, column, n, k, R, N, K, EVEN, SWAP)


@device
def product_of(
    x_rows, held, w, column, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """`product` of the bf16 rows at `x_rows`, zeros where none is held; both as `tile_rows`."""
    i = tl.arange(0, K)
    if SWAP:
        c = tl.minimum(column + tl.arange(0, N), n - 1)[:, None]
        x_at = x_rows + i[:, None]
        w_at = w + c.to(tl.int64) * k + i[None, :]
        total = tl.zeros((N, R), tl.float32)
        for start in range(0, k, K):
            if EVEN:
                a = tl.load(w_at)
                b = tl.load(x_at, mask=held, other=0.0)
            else:
                a = tl.load(w_at, mask=(start + i)[None, :] < k, other=0.0)
                b = tl.load(x_at, mask=held & ((start + i)[:, None] < k), other=0.0)
            total = tl.dot(a, b, total)
            x_at += K
            w_at += K
    else:
        c = tl.minimum(column + tl.arange(0, N), n - 1)[None, :]
        x_at = x_rows + i[None, :]
        w_at = w + c.to(tl.int64) * k + i[:, None]
        total = tl.zeros((R, N), tl.float32)
        for start in range(0, k, K):
            if EVEN:
                a = tl.load(x_at, mask=held, other=0.0)
                b = tl.load(w_at)
            else:
                a = tl.load(x_at, mask=held & ((start + i)[None, :] < k), other=0.0)
                b = tl.load(w_at, mask=(start + i)[:, None] < k, other=0.0)
            total = tl.dot(a, b, total)
            x_at += K
            w_at += K
    return total
