"""Causal attention over the paged KV cache, one (row, head) at a time.

Numerics: tokens in chunks of sixteen from position 0, so that the order depends on the row's
position only. A score is the dot of dot.py times scale, in float32. Online softmax: the running
maximum m, the running sum l by hsum, and the accumulators are rescaled by exp(m_old - m_new) once a
chunk; then each token's value is added by fma in token order. Accumulators and probabilities stay
float32; acc / l is rounded to bf16 once. Tokens past the position are never read.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, i32, matrix
from .dot import dot, dot_4_rows
from .jit import device, kernel
from .launch import Launch, bind
from .memory import (
    even,
    load1,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    load_number,
    odd,
    stack_f32,
    store1,
    store_f32,
    store_f32x16,
    store_i64,
    store_nan,
    store_pairs,
)
from .scalar import exp
from .simd import LANES, div, fma, greatest, hmax, hsum, keep_first, mul, splat, sub, zero

__all__ = ["paged_attention"]

MAX_HEAD_DIM = 512
CHUNK = LANES
"""Tokens a step of the online softmax: part of the numerics."""
OFFSET_FLOATS = 2 * CHUNK
PAIRS = 2 * LANES
MINUS_INFINITY = np.float32(-np.inf)
ZERO = np.float32(0)


@device
def locate(offsets, start, count, table, columns, block_size, pool_rows, row_bytes):
    """Stores where tokens start .. start+count-1 lie in the pool, in bytes; whether they do."""
    column = start // block_size
    inside = start - column * block_size
    for j in range(count):
        if inside == block_size:
            column += 1
            inside = 0
        if column >= columns:
            return False
        row = load_i32(table, column) * block_size + inside
        if row < 0 or row >= pool_rows:
            return False
        store_i64(offsets, j, row * row_bytes)
        inside += 1
    return True


@device
def score(q, k, offsets, scores, count, scale, head_dim):
    """Stores scale * q . k of `count` tokens."""
    for j in range(0, count - 3, 4):
        a = k + load_i64(offsets, j)
        b = k + load_i64(offsets, j + 1)
        c = k + load_i64(offsets, j + 2)
        d = k + load_i64(offsets, j + 3)
        dots = dot_4_rows(a, b, c, d, q, head_dim)
        for i in range(4):
            store_f32(scores, j + i, mul(dots[i], scale))
    for j in range(count - count % 4, count):
        store_f32(scores, j, mul(dot(k + load_i64(offsets, j), q, head_dim), scale))


@device
def scale_and_add(acc, alpha, scores, v, offsets, count, head_dim):
    """Takes acc to acc * alpha + sum of scores[j] * v[j], token by token."""
    whole = head_dim - head_dim % PAIRS
    for i in range(0, whole, PAIRS):
        a = mul(load_f32x16(acc, i), splat(alpha))
        b = mul(load_f32x16(acc, i + LANES), splat(alpha))
        for j in range(count):
            weight = splat(load_f32(scores, j))
            row = v + load_i64(offsets, j)
            a = fma(weight, even(row, i), a)
            b = fma(weight, odd(row, i), b)
        store_f32x16(acc, i, a)
        store_f32x16(acc, i + LANES, b)
    for i in range(whole, head_dim):
        c = mul(load_f32(acc, i), alpha)
        for j in range(count):
            c = fma(load_f32(scores, j), load1(v + load_i64(offsets, j), i), c)
        store_f32(acc, i, c)


@device
def divide(acc, total, y, head_dim):
    """Stores acc / total as bf16. Of 32 elements acc holds the even ones first, then the odd."""
    whole = head_dim - head_dim % PAIRS
    for i in range(0, whole, PAIRS):
        a = div(load_f32x16(acc, i), splat(total))
        store_pairs(y, i, a, div(load_f32x16(acc, i + LANES), splat(total)))
    for i in range(whole, head_dim):
        store1(y, i, div(load_f32(acc, i), total))


@device
def attend(q, k, v, y, position, table, columns, block_size, pool_rows, kv_dim, head_dim, scale,
           acc, scores, offsets):  # fmt: skip
    """One head of one row; k and v point at the head's part of pool row 0."""
    for i in range(head_dim):
        store_f32(acc, i, ZERO)
    top = MINUS_INFINITY
    total = ZERO
    for start in range(0, position + 1, CHUNK):
        count = min(CHUNK, position + 1 - start)
        if not locate(offsets, start, count, table, columns, block_size, pool_rows, 2 * kv_dim):
            return False
        score(q, k, offsets, scores, count, scale, head_dim)
        s = keep_first(load_f32x16(scores, 0), count, MINUS_INFINITY)
        new_top = greatest(top, hmax(s))
        alpha = exp(sub(top, new_top))
        p = exp(sub(s, splat(new_top)))
        store_f32x16(scores, 0, p)
        total = fma(total, alpha, hsum(p))
        scale_and_add(acc, alpha, scores, v, offsets, count, head_dim)
        top = new_top
    divide(acc, total, y, head_dim)
    return True


@kernel
def _paged_attention(arguments, chunk, chunks):
    q = load_i64(arguments, 0)
    k_pool = load_i64(arguments, 1)
    v_pool = load_i64(arguments, 2)
    y = load_i64(arguments, 3)
    positions = load_i64(arguments, 4)
    table = load_i64(arguments, 5)
    rows = load_i64(arguments, 6)
    heads = load_i64(arguments, 7)
    group = load_i64(arguments, 8)
    head_dim = load_i64(arguments, 9)
    kv_dim = load_i64(arguments, 10)
    columns = load_i64(arguments, 11)
    block_size = load_i64(arguments, 12)
    pool_rows = load_i64(arguments, 13)
    scale = load_number(arguments, 14)
    acc = stack_f32(MAX_HEAD_DIM)
    scores = stack_f32(CHUNK)
    offsets = stack_f32(OFFSET_FLOATS)
    store_f32x16(scores, 0, zero())
    items = rows * heads
    for item in range(chunk * items // chunks, (chunk + 1) * items // chunks):
        row = item // heads
        at = 2 * item * head_dim
        kv = 2 * (item % heads // group) * head_dim
        position = load_i32(positions, row)
        own = table + 4 * row * columns
        if not attend(q + at, k_pool + kv, v_pool + kv, y + at, position, own, columns, block_size,
                      pool_rows, kv_dim, head_dim, scale, acc, scores, offsets):  # fmt: skip
            for i in range(head_dim):
                store_nan(y + at, i)


def paged_attention(
    *,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    y: torch.Tensor,
    head_dim: int,
    scale: float,
) -> Launch:
    """Row r attends to tokens 0..positions[r] of its own block table.

    q, y: bf16 [rows, q_heads * head_dim]; pools: bf16 [pool rows, kv_heads * head_dim]; positions:
    i32 [rows]; block_table: i32 [rows, blocks]. Query head h reads kv head h // (q_heads /
    kv_heads). A row whose tokens lie outside its table or the pool gives NaN.
    """
    rows, q_dim = matrix("q", q)
    pool_rows, kv_dim = matrix("k_pool", k_pool)
    columns = matrix("block_table", block_table)[1]
    heads, group = _heads(q_dim, kv_dim, head_dim)
    disjoint({"y": y}, {"q": q, "k_pool": k_pool, "v_pool": v_pool, "positions": positions})
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k_pool", k_pool, (pool_rows, kv_dim)),
        bf16("v_pool", v_pool, (pool_rows, kv_dim)),
        bf16("y", y, (rows, q_dim)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
        rows,
        heads,
        group,
        head_dim,
        kv_dim,
        columns,
        block_size,
        pool_rows,
        float(scale),
    )
    kept = (q, k_pool, v_pool, positions, block_table, y)
    return bind(_paged_attention, arguments, kept, 4 * rows * q_dim * columns * block_size)


def _heads(q_dim: int, kv_dim: int, head_dim: int) -> tuple[int, int]:
    """Query heads, and how many of them share a kv head."""
    heads, kv_heads = q_dim // head_dim, kv_dim // head_dim
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}: this kernel holds at most {MAX_HEAD_DIM}")
    if q_dim % head_dim or kv_dim % head_dim or heads % kv_heads:
        raise ValueError(
            f"q has {q_dim} columns and the pools {kv_dim}: not whole heads of {head_dim}, or "
            "query heads that kv heads do not divide"
        )
    return heads, heads // kv_heads
