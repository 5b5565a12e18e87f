"""Head norms, rotary positions and the KV write in one launch, for models with q and k norms."""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .kv import pool_row
from .launch import bind
from .norm import inverse_rms, is_one_plus
from .overlap import release, wait
from .rope import copy_value, head_shapes, rotary_half
from .scalar import normed_formed1, rotate_high, rotate_low, round_bf16
from .sums import lanes_for, power_of_two, warps_of

__all__ = ["norm_rope_write"]


@device
def _normed(x, w, inverse, i, here, ONE_PLUS: tl.constexpr):
    """Elements i of a head after its norm, as their store would have rounded them."""
    value = tl.load(x + i, mask=here, other=0.0).to(tl.float32)
    return round_bf16(normed_formed1(value, inverse, w, ONE_PLUS))


@device
def _weights(weight, i, here):
    return tl.load(weight + i, mask=here, other=0.0).to(tl.float32)


@device
def _norm_rotate_head(
    x, y, weight, eps, cos, sin, position, limit, HALF: tl.constexpr, HEAD: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr, ONE_PLUS: tl.constexpr,
):  # fmt: skip
    """Waits for the launch before when it needs x, which that wrote."""
    inside = (position >= 0) & (position < limit)
    i = tl.arange(0, BLOCK)
    rotated = i < HALF
    w_a, w_b = _weights(weight, i, rotated), _weights(weight, HALF + i, rotated)
    at = position.to(tl.int64) * HALF + i
    c = tl.load(cos + at, mask=rotated & inside, other=float("nan"))
    s = tl.load(sin + at, mask=rotated & inside, other=float("nan"))
    wait()
    inverse = inverse_rms(x, eps, HEAD, LANES)
    a = _normed(x, w_a, inverse, i, rotated, ONE_PLUS)
    b = _normed(x, w_b, inverse, HALF + i, rotated, ONE_PLUS)
    tl.store(y + i, rotate_low(a, b, c, s).to(tl.bfloat16), mask=rotated)
    tl.store(y + HALF + i, rotate_high(a, b, c, s).to(tl.bfloat16), mask=rotated)
    if HEAD > 2 * HALF:
        for start in tl.static_range(2 * HALF, HEAD, BLOCK):
            here = start + i < HEAD
            w = _weights(weight, start + i, here)
            rest = _normed(x, w, inverse, start + i, here, ONE_PLUS)
            rest = tl.where(inside, rest, float("nan"))
            tl.store(y + start + i, rest.to(tl.bfloat16), mask=here)


@kernel
def _norm_rope_write(
    q, k, v, q_weight, k_weight, q_out, k_pool, v_pool, cos, sin, positions, table, q_heads,
    k_heads, limit, columns, pool_rows, q_eps, k_eps, SIZE: tl.constexpr, HALF: tl.constexpr,
    HEAD: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr, Q_ONE: tl.constexpr,
    K_ONE: tl.constexpr,
):  # fmt: skip
    release()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    position = tl.load(positions + row)
    if head < q_heads:
        at = (row * q_heads + head) * HEAD
        _norm_rotate_head(
            q + at, q_out + at, q_weight, q_eps, cos, sin, position, limit, HALF, HEAD, BLOCK,
            LANES, Q_ONE,
        )  # fmt: skip
    else:
        target = pool_row(table + row * columns, position, columns, pool_rows, SIZE)
        if target >= 0:
            at = (row * k_heads + head - q_heads) * HEAD
            to = (target * k_heads + head - q_heads) * HEAD
            _norm_rotate_head(
                k + at, k_pool + to, k_weight, k_eps, cos, sin, position, limit, HALF, HEAD,
                BLOCK, LANES, K_ONE,
            )  # fmt: skip
            copy_value(v, v_pool, at, to, HEAD, BLOCK)


def norm_rope_write(
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
    q_out: torch.Tensor,
    q_weight_form: str = "plain",
    k_weight_form: str = "plain",
) -> object:
    """`head_norm` of q and of k, `rope`, `kv_write`: only q_out and the pools are written.

    q, q_out: bf16 [rows, q_heads * head_dim]; k, v: [rows, kv_heads * head_dim]; weights
    [head_dim]; cos, sin: f32 [max_positions, rotated / 2]; positions i32 [rows]; block_table i32
    [rows, blocks]; pools bf16 [pool rows, kv_heads * head_dim].
    """
    head_dim = q_weight.shape[-1]
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    columns = matrix("block_table", block_table)[1]
    pool_rows = matrix("k_pool", k_pool)[0]
    disjoint({"q_out": q_out, "k_pool": k_pool, "v_pool": v_pool}, {"q": q, "k": k, "v": v})
    heads, lanes = (q_dim // head_dim, k_dim // head_dim), lanes_for(head_dim)
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, k_dim)),
        bf16("v", v, (rows, k_dim)),
        bf16("q_weight", q_weight, (head_dim,)),
        bf16("k_weight", k_weight, (head_dim,)),
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
        float(q_eps),
        float(k_eps),
        block_size,
        half,
        head_dim,
        power_of_two(half),
        lanes,
        is_one_plus(q_weight_form),
        is_one_plus(k_weight_form),
    )
    return bind(_norm_rope_write, (rows, sum(heads)), arguments, warps=warps_of(lanes))
