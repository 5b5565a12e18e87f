"""Causal attention over the paged KV cache: the query heads of one kv head of one row at a time.

Numerics: tokens are split at fixed positions (SPLIT apart from position 0), so that the order
depends on the row's position only. Within a split: scores by the tensor core times scale, their
maximum m, p = exp(score - m), sums = sum of p, and acc = bf16(p) V by the tensor core. Splits are
merged from the first to the last: both sides rescaled by exp of their maximum less the greater
one, then added. acc / sums is rounded to bf16 once. Tokens past the position are never read.

Few rows: a program per split leaves its part in scratch memory, and the last to arrive merges all.
Many rows: one program goes through its row's splits. The same operations either way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .kv import pool_row
from .launch import bind
from .overlap import enter, release, wait
from .scalar import exp
from .sums import power_of_two
from .workspace import COUNTERS, counters, scratch

__all__ = [
    "AT_ONCE", "LEAST_TILE", "SPLIT", "WARPS", "heads_of", "merge", "paged_attention",
    "scratch_bytes",
]  # fmt: skip

MAX_HEAD_DIM = 512
AT_ONCE = tl.constexpr(8)
"""Splits whose parts are loaded together."""
LEAST_TILE = 16
SPLIT = 128
"""Tokens of a split: part of the numerics."""
WARPS = 8
ENOUGH_PROGRAMS = 512
"""Rows times kv heads from which on a row's splits are one program's."""


@device
def _cached(pool, row, needed, kv_dim, HEAD: tl.constexpr, D: tl.constexpr):
    """The keys or values of pool rows: bf16 [SPLIT, D], zeros where none is needed or there is."""
    d = tl.arange(0, D)
    row = tl.where(needed, row, -1)
    held = (row >= 0)[:, None] & (d < HEAD)[None, :]
    at = row[:, None] * kv_dim + d[None, :]
    return tl.load(pool + at, mask=held, other=0.0, cache_modifier=".cg")


@device
def _attend(q, k, v, row, needed, past, scale):
    """(m [G], sums [G], acc [G, D]) of a split's tokens that are needed.

    q: bf16 [G, D]; k, v: bf16 [SPLIT, D]; row: the tokens' pool rows, -1 for those that have none;
    past: whether the position lies past the table.
    """
    lost = (needed & (row < 0)) | past
    score = tl.dot(q, tl.trans(k)) * scale
    score = tl.where(needed[None, :], score, float("-inf"))
    score = tl.where(lost[None, :], float("nan"), score)
    m = tl.max(score, 1)
    p = exp(score - m[:, None])
    return m, tl.sum(p, 1), tl.dot(p.to(tl.bfloat16), v)


@device
def merge(m, sums, acc, m_next, sums_next, acc_next):
    """What is merged so far, and the next split's."""
    top = tl.maximum(m, m_next)
    old, new = exp(m - top), exp(m_next - top)
    return top, sums * old + sums_next * new, acc * old[:, None] + acc_next * new[:, None]


@device
def _query(q, row, kv_head, kv_heads, GROUP: tl.constexpr, G: tl.constexpr, HEAD: tl.constexpr,
           D: tl.constexpr):  # fmt: skip
    """The query heads of a kv head, bf16 [G, D] filled up with zeros."""
    g, d = tl.arange(0, G)[:, None], tl.arange(0, D)[None, :]
    at = ((row * kv_heads + kv_head) * GROUP + g) * HEAD + d
    return tl.load(q + at, mask=(g < GROUP) & (d < HEAD), other=0.0)


@device
def _put(y, acc, sums, row, kv_head, kv_heads, GROUP: tl.constexpr, G: tl.constexpr,
         HEAD: tl.constexpr, D: tl.constexpr):  # fmt: skip
    g, d = tl.arange(0, G)[:, None], tl.arange(0, D)[None, :]
    at = ((row * kv_heads + kv_head) * GROUP + g) * HEAD + d
    value = tl.div_rn(acc, tl.broadcast_to(sums[:, None], (G, D)))
    tl.store(y + at, value.to(tl.bfloat16), mask=(g < GROUP) & (d < HEAD))


@kernel
def _whole_rows(
    q, k_pool, v_pool, y, positions, table, columns, pool_rows, kv_heads, scale,
    SIZE: tl.constexpr, SPLIT: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    enter()
    row, kv_head = tl.program_id(1).to(tl.int64), tl.program_id(0)
    position = tl.load(positions + row)
    tile = _query(q, row, kv_head, kv_heads, GROUP, G, HEAD, D)
    shift = kv_head * HEAD
    m = tl.full((G,), float("-inf"), tl.float32)
    sums = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for first in range(0, tl.minimum(position + 1, columns * SIZE), SPLIT):
        token = first + tl.arange(0, SPLIT)
        places = pool_row(table + row * columns, token, columns, pool_rows, SIZE)
        needed = token <= position
        k = _cached(k_pool + shift, places, needed, kv_heads * HEAD, HEAD, D)
        v = _cached(v_pool + shift, places, needed, kv_heads * HEAD, HEAD, D)
        past = position >= columns * SIZE
        m_next, sums_next, acc_next = _attend(tile, k, v, places, needed, past, scale)
        m, sums, acc = merge(m, sums, acc, m_next, sums_next, acc_next)
    _put(y, acc, sums, row, kv_head, kv_heads, GROUP, G, HEAD, D)


@kernel
def _splits(
    q, k_pool, v_pool, y, positions, table, tops, parts, arrived, columns, pool_rows, kv_heads,
    scale, SIZE: tl.constexpr, SPLIT: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Tops and parts: see `_hand_in`."""
    release()
    split, row, kv_head = tl.program_id(0), tl.program_id(2).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    # Nothing of a step writes its inputs, so these are read while the launch before goes on.
    token = split * SPLIT + tl.arange(0, SPLIT)
    places = pool_row(table + row * columns, token, columns, pool_rows, SIZE)
    wait()
    tile = _query(q, row, kv_head, kv_heads, GROUP, G, HEAD, D)
    count = tl.minimum(tl.maximum(position // SPLIT + 1, 1), tl.num_programs(0))
    if split < count:
        shift = kv_head * HEAD
        needed = token <= position
        k = _cached(k_pool + shift, places, needed, kv_heads * HEAD, HEAD, D)
        v = _cached(v_pool + shift, places, needed, kv_heads * HEAD, HEAD, D)
        past = position >= columns * SIZE
        m, sums, acc = _attend(tile, k, v, places, needed, past, scale)
        _hand_in(
            m, sums, acc, y, tops, parts, arrived, split, count, row, kv_head, kv_heads, GROUP, G,
            FEW, HEAD, D,
        )  # fmt: skip


@device
def _hand_in(
    m, sums, acc, y, tops, parts, arrived, split, count, row, kv_head, kv_heads,
    GROUP: tl.constexpr, G: tl.constexpr, FEW: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Leaves a split's part in scratch memory; the last of the row's splits merges all of them.

    tops: f32 [row and kv head, split, 2, GROUP]; parts: f32 [same, split, GROUP, HEAD]. FEW: the
    power of two that GROUP needs; G has room for a tile of the tensor core.
    """
    g, d = tl.arange(0, G), tl.arange(0, D)
    inside = g[:, None] * HEAD + d[None, :]
    place = row * kv_heads + kv_head
    first = place * tl.num_programs(0)
    real = g < GROUP
    held = real[:, None] & (d < HEAD)[None, :]
    tl.store(tops + (first + split) * 2 * GROUP + g, m, mask=real)
    tl.store(tops + (first + split) * 2 * GROUP + GROUP + g, sums, mask=real)
    tl.store(parts + (first + split) * GROUP * HEAD + inside, acc, mask=held)
    tl.debug_barrier()
    before = tl.atomic_add(arrived + place, 1, sem="acq_rel", scope="gpu")
    if before == count - 1:
        tl.store(arrived + place, 0)
        _merge_all(y, tops, parts, first, count, row, kv_head, kv_heads, GROUP, FEW, HEAD, D)


@device
def _merge_all(
    y, tops, parts, first, count, row, kv_head, kv_heads, GROUP: tl.constexpr, FEW: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The row's result, of the parts that its splits left from place `first` on."""
    g, d = tl.arange(0, FEW), tl.arange(0, D)
    inside = g[:, None] * HEAD + d[None, :]
    real = g < GROUP
    held = real[:, None] & (d < HEAD)[None, :]
    m = tl.full((FEW,), float("-inf"), tl.float32)
    sums = tl.zeros((FEW,), tl.float32)
    acc = tl.zeros((FEW, D), tl.float32)
    for start in range(0, count, AT_ONCE):
        # Their loads wait for no sum. What is past the last changes nothing: e^-inf is 0.
        for inner in tl.static_range(AT_ONCE):
            at = first + start + inner
            there = start + inner < count
            tops_at = tops + at * 2 * GROUP + g
            parts_at = parts + at * GROUP * HEAD + inside
            m_next = tl.load(tops_at, mask=real & there, other=float("-inf"), cache_modifier=".cg")
            sums_next = tl.load(tops_at + GROUP, mask=real & there, other=0.0, cache_modifier=".cg")
            acc_next = tl.load(parts_at, mask=held & there, other=0.0, cache_modifier=".cg")
            m, sums, acc = merge(m, sums, acc, m_next, sums_next, acc_next)
    _put(y, acc, sums, row, kv_head, kv_heads, GROUP, FEW, HEAD, D)


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
) -> object:
    """Row r attends to tokens 0..positions[r] of its own block table.

    q, y: bf16 [rows, q_heads * head_dim]; pools: bf16 [pool rows, kv_heads * head_dim]; positions:
    i32 [rows]; block_table: i32 [rows, blocks]. Query head h reads kv head h // (q_heads /
    kv_heads). A row whose tokens lie outside its table or the pool gives NaN.
    """
    rows, q_dim = matrix("q", q)
    pool_rows, kv_dim = matrix("k_pool", k_pool)
    columns = matrix("block_table", block_table)[1]
    kv_heads, group = heads_of(q_dim, kv_dim, head_dim)
    disjoint({"y": y}, {"q": q, "k_pool": k_pool, "v_pool": v_pool, "positions": positions})
    tensors = (
        bf16("q", q, (rows, q_dim)),
        bf16("k_pool", k_pool, (pool_rows, kv_dim)),
        bf16("v_pool", v_pool, (pool_rows, kv_dim)),
        bf16("y", y, (rows, q_dim)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
    )
    tile = power_of_two(group, LEAST_TILE)
    depth = power_of_two(head_dim, LEAST_TILE)
    sizes = (
        columns, pool_rows, kv_heads, float(scale), block_size, SPLIT, group, tile, head_dim, depth,
    )  # fmt: skip
    if rows * kv_heads >= ENOUGH_PROGRAMS:
        return bind(_whole_rows, (kv_heads, rows), (*tensors, *sizes), WARPS, stages=1)
    splits = triton.cdiv(columns * block_size, SPLIT)
    parts = rows * kv_heads * splits * group
    floats = scratch(parts * (head_dim + 2))
    own = (floats[parts * head_dim :], floats, counters())
    few = power_of_two(group)
    return bind(_splits, (splits, kv_heads, rows), (*tensors, *own, *sizes, few), WARPS, stages=1)


def scratch_bytes(*, q_heads: int, kv_heads: int, head_dim: int, max_seq_len: int) -> int:
    """Bytes of scratch memory for any number of rows: FAMILIES.toml states the same."""
    splits = triton.cdiv(max_seq_len, SPLIT) + 1
    return 4 * ENOUGH_PROGRAMS * splits * (q_heads // kv_heads) * (head_dim + 2)


def heads_of(q_dim: int, kv_dim: int, head_dim: int) -> tuple[int, int]:
    """KV heads, and how many query heads share one."""
    heads, kv_heads = q_dim // head_dim, kv_dim // head_dim
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}: this kernel holds at most {MAX_HEAD_DIM}")
    if q_dim % head_dim or kv_dim % head_dim or heads % kv_heads:
        raise ValueError(
            f"q has {q_dim} columns and the pools {kv_dim}: not whole heads of {head_dim}, or "
            "query heads that kv heads do not divide"
        )
    if kv_heads > COUNTERS:
        raise ValueError(f"{kv_heads} kv heads: this kernel counts at most {COUNTERS}")
    return kv_heads, heads // kv_heads
