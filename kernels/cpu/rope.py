"""Rotary positions on half-split pairs, alone and fused with the KV write.

Numerics: (a, b) = (x[i], x[i + half]); a' = a cos - b sin, b' = b cos + a sin in float32, each
product and sum rounded, then one rounding to bf16. Elements past the rotated width are copied.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .kv import pool_row, write_row
from .launch import Launch, bind
from .memory import (
    copy_bytes,
    load1,
    load16,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    store1,
    store16,
    store_nan,
)
from .scalar import rotate_high, rotate_low
from .simd import LANES

__all__ = ["rope", "rope_write"]


@device
def rotate_head(x, y, cos, sin, half, head_dim):
    """One head; `cos` and `sin` are the addresses of the position's own table rows."""
    whole = half - half % LANES
    for i in range(0, whole, LANES):
        a = load16(x, i)
        b = load16(x, i + half)
        c = load_f32x16(cos, i)
        s = load_f32x16(sin, i)
        store16(y, i, rotate_low(a, b, c, s))
        store16(y, i + half, rotate_high(a, b, c, s))
    for i in range(whole, half):
        a = load1(x, i)
        b = load1(x, i + half)
        c = load_f32(cos, i)
        s = load_f32(sin, i)
        store1(y, i, rotate_low(a, b, c, s))
        store1(y, i + half, rotate_high(a, b, c, s))
    if head_dim > 2 * half:
        copy_bytes(y + 4 * half, x + 4 * half, 2 * (head_dim - 2 * half))


@device
def rotate_row(x, y, dim, cos, sin, position, max_positions, half, head_dim):
    """All heads of one row; a position outside the tables gives NaN, never a read outside."""
    if 0 <= position < max_positions:
        at = 4 * position * half
        for head in range(0, dim, head_dim):
            rotate_head(x + 2 * head, y + 2 * head, cos + at, sin + at, half, head_dim)
    else:
        for i in range(dim):
            store_nan(y, i)


@kernel
def _rope(arguments, chunk, chunks):
    q = load_i64(arguments, 0)
    k = load_i64(arguments, 1)
    q_out = load_i64(arguments, 2)
    k_out = load_i64(arguments, 3)
    cos = load_i64(arguments, 4)
    sin = load_i64(arguments, 5)
    positions = load_i64(arguments, 6)
    rows = load_i64(arguments, 7)
    q_dim = load_i64(arguments, 8)
    k_dim = load_i64(arguments, 9)
    limit = load_i64(arguments, 10)
    half = load_i64(arguments, 11)
    head_dim = load_i64(arguments, 12)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = load_i32(positions, row)
        x = q + 2 * row * q_dim
        y = q_out + 2 * row * q_dim
        rotate_row(x, y, q_dim, cos, sin, at, limit, half, head_dim)
        x = k + 2 * row * k_dim
        y = k_out + 2 * row * k_dim
        rotate_row(x, y, k_dim, cos, sin, at, limit, half, head_dim)


@kernel
def _rope_write(arguments, chunk, chunks):
    q = load_i64(arguments, 0)
    k = load_i64(arguments, 1)
    v = load_i64(arguments, 2)
    q_out = load_i64(arguments, 3)
    k_pool = load_i64(arguments, 4)
    v_pool = load_i64(arguments, 5)
    cos = load_i64(arguments, 6)
    sin = load_i64(arguments, 7)
    positions = load_i64(arguments, 8)
    table = load_i64(arguments, 9)
    rows = load_i64(arguments, 10)
    q_dim = load_i64(arguments, 11)
    k_dim = load_i64(arguments, 12)
    limit = load_i64(arguments, 13)
    half = load_i64(arguments, 14)
    head_dim = load_i64(arguments, 15)
    columns = load_i64(arguments, 16)
    block_size = load_i64(arguments, 17)
    pool_rows = load_i64(arguments, 18)
    for row in range(rows):  # one chunk: padding rows share a block, and the last must win
        at = load_i32(positions, row)
        x = q + 2 * row * q_dim
        y = q_out + 2 * row * q_dim
        rotate_row(x, y, q_dim, cos, sin, at, limit, half, head_dim)
        target = pool_row(table + 4 * row * columns, at, columns, block_size, pool_rows)
        if target >= 0:
            x = k + 2 * row * k_dim
            y = k_pool + 2 * target * k_dim
            rotate_row(x, y, k_dim, cos, sin, at, limit, half, head_dim)
            write_row(v_pool, v + 2 * row * k_dim, target, k_dim)


def rope(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    q_out: torch.Tensor,
    k_out: torch.Tensor,
    head_dim: int,
) -> Launch:
    """Rotates q [rows, q_heads * head_dim] and k [rows, kv_heads * head_dim] (bf16).

    cos, sin: f32 [max_positions, rotated / 2]; positions: i32 [rows].
    """
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    disjoint({"q_out": q_out, "k_out": k_out}, {"q": q, "k": k, "cos": cos, "positions": positions})
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, k_dim)),
        bf16("q_out", q_out, (rows, q_dim)),
        bf16("k_out", k_out, (rows, k_dim)),
        f32("cos", cos, (cos.shape[0], half)),
        f32("sin", sin, (cos.shape[0], half)),
        i32("positions", positions, (rows,)),
        rows,
        q_dim,
        k_dim,
        cos.shape[0],
        half,
        head_dim,
    )
    kept = (q, k, cos, sin, positions, q_out, k_out)
    return bind(_rope, arguments, kept, 4 * rows * (q_dim + k_dim))


def rope_write(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    q_out: torch.Tensor,
    head_dim: int,
) -> Launch:
    """`rope`, then `kv_write` of the rotated k and of v: only q_out and the pools are written."""
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    columns = matrix("block_table", block_table)[1]
    pool_rows = matrix("k_pool", k_pool)[0]
    disjoint({"q_out": q_out, "k_pool": k_pool, "v_pool": v_pool}, {"q": q, "k": k, "v": v})
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, k_dim)),
        bf16("v", v, (rows, k_dim)),
        bf16("q_out", q_out, (rows, q_dim)),
        bf16("k_pool", k_pool, (pool_rows, k_dim)),
        bf16("v_pool", v_pool, (pool_rows, k_dim)),
        f32("cos", cos, (cos.shape[0], half)),
        f32("sin", sin, (cos.shape[0], half)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
        rows,
        q_dim,
        k_dim,
        cos.shape[0],
        half,
        head_dim,
        columns,
        block_size,
        pool_rows,
    )
    kept = (q, k, v, cos, sin, positions, block_table, k_pool, v_pool, q_out)
    return bind(_rope_write, arguments, kept)


def head_shapes(q: torch.Tensor, k: torch.Tensor, head_dim: int) -> tuple[int, int, int]:
    rows, q_dim = matrix("q", q)
    k_dim = matrix("k", k)[1]
    if q_dim % head_dim or k_dim % head_dim:
        raise ValueError(f"q has {q_dim} columns and k {k_dim}: not whole heads of {head_dim}")
    return rows, q_dim, k_dim


def rotary_half(cos: torch.Tensor, head_dim: int) -> int:
    half = matrix("cos", cos)[1]
    if 2 * half > head_dim:
        raise ValueError(f"cos has {half} columns: at most half of head_dim {head_dim}")
    return half
