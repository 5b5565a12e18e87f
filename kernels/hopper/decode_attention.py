"""Head norms, rotary positions, the KV write and attention in one launch: one row of a sequence.

For steps whose rows belong to different sequences: a row then attends to keys that earlier steps
wrote, and to its own. The earlier ones are asked for before the wait for the launch before: embed,
the first launch of a step, lets no other start before all of the step before is written.

Every program of a row turns the query heads itself, and leaves them where the row's result will
be; the program of the row's own position also writes its key and value.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .attention import (
    ENOUGH_PROGRAMS,
    LEAST_TILE,
    SPLIT,
    WARPS,
    attend,
    cached,
    hand_in,
    heads_of,
    merge,
    put,
    query,
)
from .check import bf16, disjoint, f32, i32, matrix
from .fused import head_constants, norm_rotate
from .jit import device, kernel
from .kv import pool_row
from .launch import bind
from .norm import inverse_rms, is_one_plus
from .overlap import release, wait
from .rope import copy_value, rotary_half
from .sums import lanes_for, power_of_two
from .workspace import counters, scratch

__all__ = ["norm_rope_attend"]


@device
def _turn_queries(
    q, y, at, constants, weight, eps, inside, GROUP: tl.constexpr, HALF: tl.constexpr,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    """The query heads of a kv head, normed and turned, from q to y."""
    inverses = ()
    for g in tl.static_range(GROUP):
        inverses = inverses + (inverse_rms(q + at + g * HEAD, eps, HEAD, LANES),)
    for g in tl.static_range(GROUP):
        one = at + g * HEAD
        norm_rotate(
            q + one, y + one, inverses[g], weight, constants, inside, HALF, HEAD, BLOCK, ONE_PLUS
        )


@device
def _write_own(
    k, v, k_pool, v_pool, source, target, constants, weight, eps, inside, HALF: tl.constexpr,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    """The row's own key, normed and turned, and its value, to the pools."""
    inverse = inverse_rms(k + source, eps, HEAD, LANES)
    norm_rotate(
        k + source, k_pool + target, inverse, weight, constants, inside, HALF, HEAD, BLOCK, ONE_PLUS
    )
    copy_value(v, v_pool, source, target, HEAD, BLOCK)


@kernel
def _new_rows(
    q, k, v, q_weight, k_weight, cos, sin, k_pool, v_pool, y, positions, table, tops, parts,
    arrived, limit, columns, pool_rows, kv_heads, q_eps, k_eps, scale, SIZE: tl.constexpr,
    SPLIT: tl.constexpr, GROUP: tl.constexpr, G: tl.constexpr, HALF: tl.constexpr,
    HEAD: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
    Q_ONE: tl.constexpr, K_ONE: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """WHOLE: a program goes through all splits of its row; else through one."""
    release()
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    position = tl.load(positions + row)
    inside = (position >= 0) & (position < limit)
    past = position >= columns * SIZE
    listed = table + row * columns
    shift = kv_head * HEAD
    kv_dim = kv_heads * HEAD
    token = split * SPLIT + tl.arange(0, SPLIT)
    places = pool_row(listed, token, columns, pool_rows, SIZE)
    if not WHOLE:
        keys = cached(k_pool + shift, places, token < position, kv_dim, HEAD, D)
        values = cached(v_pool + shift, places, token < position, kv_dim, HEAD, D)
    q_constants = head_constants(q_weight, cos, sin, position, inside, HALF, BLOCK)
    k_constants = head_constants(k_weight, cos, sin, position, inside, HALF, BLOCK)
    own = pool_row(listed, position, columns, pool_rows, SIZE)
    wait()
    count = tl.minimum(tl.maximum(position // SPLIT + 1, 1), tl.cdiv(columns * SIZE, SPLIT))
    if WHOLE | (split < count):
        _turn_queries(
            q, y, (row * kv_heads + kv_head) * GROUP * HEAD, q_constants, q_weight, q_eps, inside,
            GROUP, HALF, HEAD, BLOCK, LANES, Q_ONE,
        )  # fmt: skip
        if (own >= 0) & (WHOLE | (split == count - 1)):
            _write_own(
                k, v, k_pool, v_pool, (row * kv_heads + kv_head) * HEAD, own * kv_dim + shift,
                k_constants, k_weight, k_eps, inside, HALF, HEAD, BLOCK, LANES, K_ONE,
            )  # fmt: skip
        tl.debug_barrier()
        tile = query(y, row, kv_head, kv_heads, GROUP, G, HEAD, D)
        if WHOLE:
            m = tl.full((G,), float("-inf"), tl.float32)
            sums = tl.zeros((G,), tl.float32)
            acc = tl.zeros((G, D), tl.float32)
            for first in range(0, tl.minimum(position + 1, columns * SIZE), SPLIT):
                token = first + tl.arange(0, SPLIT)
                places = pool_row(listed, token, columns, pool_rows, SIZE)
                needed = token <= position
                keys = cached(k_pool + shift, places, needed, kv_dim, HEAD, D)
                values = cached(v_pool + shift, places, needed, kv_dim, HEAD, D)
                m_next, sums_next, acc_next = attend(
                    tile, keys, values, places, needed, past, scale
                )
                m, sums, acc = merge(m, sums, acc, m_next, sums_next, acc_next)
            tl.debug_barrier()
            put(y, acc, sums, row, kv_head, kv_heads, GROUP, G, HEAD, D)
        else:
            fresh = token == position
            new_keys = cached(k_pool + shift, places, fresh, kv_dim, HEAD, D)
            new_values = cached(v_pool + shift, places, fresh, kv_dim, HEAD, D)
            keys = tl.where(fresh[:, None], new_keys, keys)
            values = tl.where(fresh[:, None], new_values, values)
            m, sums, acc = attend(tile, keys, values, places, token <= position, past, scale)
            hand_in(
                m, sums, acc, y, tops, parts, arrived, split, count, row, kv_head, kv_heads,
                GROUP, G, HEAD, D,
            )  # fmt: skip


def norm_rope_attend(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    y: torch.Tensor,
    scale: float,
    q_weight_form: str = "plain",
    k_weight_form: str = "plain",
) -> object:
    """`norm_rope_write`, then `paged_attention`, where no row reads another's new key.

    Shapes as there; y: bf16, as q. Only y and the pools are written.
    """
    head_dim = q_weight.shape[-1]
    rows, q_dim = matrix("q", q)
    pool_rows, kv_dim = matrix("k_pool", k_pool)
    columns = matrix("block_table", block_table)[1]
    kv_heads, group = heads_of(q_dim, kv_dim, head_dim)
    half = rotary_half(cos, head_dim)
    read = {"q": q, "k": k, "v": v, "positions": positions}
    disjoint({"y": y, "k_pool": k_pool, "v_pool": v_pool}, read)
    whole = rows * kv_heads >= ENOUGH_PROGRAMS
    splits = 1 if whole else triton.cdiv(columns * block_size, SPLIT)
    parts = 0 if whole else rows * kv_heads * splits * group
    floats = scratch(parts * (head_dim + 2))
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, kv_dim)),
        bf16("v", v, (rows, kv_dim)),
        bf16("q_weight", q_weight, (head_dim,)),
        bf16("k_weight", k_weight, (head_dim,)),
        f32("cos", cos, (cos.shape[0], half)),
        f32("sin", sin, (cos.shape[0], half)),
        bf16("k_pool", k_pool, (pool_rows, kv_dim)),
        bf16("v_pool", v_pool, (pool_rows, kv_dim)),
        bf16("y", y, (rows, q_dim)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
        floats[parts * head_dim :],
        floats,
        counters(),
        cos.shape[0],
        columns,
        pool_rows,
        kv_heads,
        float(q_eps),
        float(k_eps),
        float(scale),
        block_size,
        SPLIT,
        group,
        power_of_two(group, LEAST_TILE),
        half,
        head_dim,
        power_of_two(head_dim, LEAST_TILE),
        power_of_two(half),
        lanes_for(head_dim),
        is_one_plus(q_weight_form),
        is_one_plus(k_weight_form),
        whole,
    )
    return bind(_new_rows, (splits, kv_heads, rows), arguments, WARPS, stages=1)
