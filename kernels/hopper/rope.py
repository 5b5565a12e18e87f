"""Rotary positions on half-split pairs, alone and fused with the KV write.

Numerics: (a, b) = (x[i], x[i + half]); a' = a cos - b sin, b' = b cos + a sin in float32, each
product and sum rounded, then one rounding to bf16. Elements past the rotated width are copied.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .kv import pool_row
from .launch import bind
from .overlap import enter
from .scalar import rotate_high, rotate_low
from .sums import power_of_two

__all__ = ["copy_value", "head_shapes", "rope", "rope_write", "rotary_half", "rotate_head"]


@device
def rotate_head(
    x, y, cos, sin, position, limit, HALF: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr
):
    """One head from x to y; a position outside the tables gives NaN, never a read outside."""
    inside = (position >= 0) & (position < limit)
    i = tl.arange(0, BLOCK)
    rotated = i < HALF
    a = tl.load(x + i, mask=rotated, other=0.0).to(tl.float32)
    b = tl.load(x + HALF + i, mask=rotated, other=0.0).to(tl.float32)
    at = position.to(tl.int64) * HALF + i
    c = tl.load(cos + at, mask=rotated & inside, other=float("nan"))
    s = tl.load(sin + at, mask=rotated & inside, other=float("nan"))
    tl.store(y + i, rotate_low(a, b, c, s).to(tl.bfloat16), mask=rotated)
    tl.store(y + HALF + i, rotate_high(a, b, c, s).to(tl.bfloat16), mask=rotated)
    if HEAD > 2 * HALF:
        for start in tl.static_range(2 * HALF, HEAD, BLOCK):
            here = start + i < HEAD
            rest = tl.load(x + start + i, mask=here, other=0.0)
            tl.store(y + start + i, tl.where(inside, rest, float("nan")), mask=here)


@device
def copy_value(v, v_pool, source, target, HEAD: tl.constexpr, BLOCK: tl.constexpr):
    """One head of a value row, from element `source` of v to element `target` of the pool."""
    i = tl.arange(0, BLOCK)
    for start in tl.static_range(0, HEAD, BLOCK):
        here = start + i < HEAD
        value = tl.load(v + source + start + i, mask=here, other=0.0)
        tl.store(v_pool + target + start + i, value, mask=here)


@kernel
def _rope(
    q, k, q_out, k_out, cos, sin, positions, q_heads, k_heads, limit, HALF: tl.constexpr,
    HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    enter()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if head < q_heads:
        at = (row * q_heads + head) * HEAD
        rotate_head(q + at, q_out + at, cos, sin, position, limit, HALF, HEAD, BLOCK)
    else:
        at = (row * k_heads + head - q_heads) * HEAD
        rotate_head(k + at, k_out + at, cos, sin, position, limit, HALF, HEAD, BLOCK)


@kernel
def _rope_write(
    q, k, v, q_out, k_pool, v_pool, cos, sin, positions, table, q_heads, k_heads, limit, columns,
    pool_rows, SIZE: tl.constexpr, HALF: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    enter()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if head < q_heads:
        at = (row * q_heads + head) * HEAD
        rotate_head(q + at, q_out + at, cos, sin, position, limit, HALF, HEAD, BLOCK)
    else:
        target = pool_row(table + row * columns, position, columns, pool_rows, SIZE)
        if target >= 0:
            at = (row * k_heads + head - q_heads) * HEAD
            to = (target * k_heads + head - q_heads) * HEAD
            rotate_head(k + at, k_pool + to, cos, sin, position, limit, HALF, HEAD, BLOCK)
            copy_value(v, v_pool, at, to, HEAD, BLOCK)


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
) -> object:
    """Rotates q [rows, q_heads * head_dim] and k [rows, kv_heads * head_dim] (bf16).

    cos, sin: f32 [max_positions, rotated / 2]; positions: i32 [rows].
    """
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    disjoint({"q_out": q_out, "k_out": k_out}, {"q": q, "k": k, "cos": cos, "positions": positions})
    heads = (q_dim // head_dim, k_dim // head_dim)
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, k_dim)),
        bf16("q_out", q_out, (rows, q_dim)),
        bf16("k_out", k_out, (rows, k_dim)),
        f32("cos", cos, (cos.shape[0], half)),
        f32("sin", sin, (cos.shape[0], half)),
        i32("positions", positions, (rows,)),
        *heads,
        cos.shape[0],
        half,
        head_dim,
        power_of_two(half),
    )
    return bind(_rope, (rows, sum(heads)), arguments, warps=1)


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
) -> object:
    """`rope`, then `kv_write` of the rotated k and of v: only q_out and the pools are written."""
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    columns = matrix("block_table", block_table)[1]
    pool_rows = matrix("k_pool", k_pool)[0]
    disjoint({"q_out": q_out, "k_pool": k_pool, "v_pool": v_pool}, {"q": q, "k": k, "v": v})
    heads = (q_dim // head_dim, k_dim // head_dim)
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
        *heads,
        cos.shape[0],
        columns,
        pool_rows,
        block_size,
        half,
        head_dim,
        power_of_two(half),
    )
    return bind(_rope_write, (rows, sum(heads)), arguments, warps=1)


def head_shapes(q: torch.Tensor, k: torch.Tensor, head_dim: int) -> tuple[int, int, int]:
    """Rows, and columns of q and of k: whole heads."""
    rows, q_dim = matrix("q", q)
    k_dim = matrix("k", k)[1]
    if q_dim % head_dim or k_dim % head_dim:
        raise ValueError(f"q has {q_dim} columns and k {k_dim}: not whole heads of {head_dim}")
    return rows, q_dim, k_dim


def rotary_half(cos: torch.Tensor, head_dim: int) -> int:
    """Pairs of a head that turn."""
    half = matrix("cos", cos)[1]
    if 2 * half > head_dim:
        raise ValueError(f"cos has {half} columns: at most half of head_dim {head_dim}")
    return half
