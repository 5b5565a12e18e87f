"""Head norms, rotary positions and the KV write in one launch, for models with q and k norms."""

from __future__ import annotations

import torch

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .kv import pool_row, write_row
from .launch import Launch, bind
from .memory import load_i32, load_i64, load_number, stack_f32, store_nan
from .norm import is_one_plus, norm_formed_row
from .rope import head_shapes, rotary_half, rotate_head

__all__ = ["norm_rope_write"]

MAX_HEAD_DIM = 512
NORMED_FLOATS = MAX_HEAD_DIM // 2  # that many bf16


@device
def norm_rotate_row(
    x, y, dim, weight, eps, one_plus, cos, sin, position, limit, half, head_dim, normed
):
    """All heads of one row: the norm, rounded to bf16 in `normed`, then the rotation."""
    if 0 <= position < limit:
        at = 4 * position * half
        for head in range(0, dim, head_dim):
            norm_formed_row(x + 2 * head, weight, normed, head_dim, eps, one_plus)
            rotate_head(normed, y + 2 * head, cos + at, sin + at, half, head_dim)
    else:
        for i in range(dim):
            store_nan(y, i)


@kernel
def _norm_rope_write(arguments, chunk, chunks):
    q = load_i64(arguments, 0)
    k = load_i64(arguments, 1)
    v = load_i64(arguments, 2)
    q_weight = load_i64(arguments, 3)
    k_weight = load_i64(arguments, 4)
    q_out = load_i64(arguments, 5)
    k_pool = load_i64(arguments, 6)
    v_pool = load_i64(arguments, 7)
    cos = load_i64(arguments, 8)
    sin = load_i64(arguments, 9)
    positions = load_i64(arguments, 10)
    table = load_i64(arguments, 11)
    rows = load_i64(arguments, 12)
    q_dim = load_i64(arguments, 13)
    k_dim = load_i64(arguments, 14)
    limit = load_i64(arguments, 15)
    half = load_i64(arguments, 16)
    head_dim = load_i64(arguments, 17)
    columns = load_i64(arguments, 18)
    block_size = load_i64(arguments, 19)
    pool_rows = load_i64(arguments, 20)
    q_eps = load_number(arguments, 21)
    k_eps = load_number(arguments, 22)
    q_one_plus = load_i64(arguments, 23)
    k_one_plus = load_i64(arguments, 24)
    normed = stack_f32(NORMED_FLOATS)
    for row in range(rows):  # one chunk: padding rows share a block, and the last must win
        at = load_i32(positions, row)
        x = q + 2 * row * q_dim
        y = q_out + 2 * row * q_dim
        norm_rotate_row(
            x, y, q_dim, q_weight, q_eps, q_one_plus, cos, sin, at, limit, half, head_dim, normed
        )
        target = pool_row(table + 4 * row * columns, at, columns, block_size, pool_rows)
        if target >= 0:
            x = k + 2 * row * k_dim
            y = k_pool + 2 * target * k_dim
            norm_rotate_row(
                x,
                y,
                k_dim,
                k_weight,
                k_eps,
                k_one_plus,
                cos,
                sin,
                at,
                limit,
                half,
                head_dim,
                normed,
            )
            write_row(v_pool, v + 2 * row * k_dim, target, k_dim)


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
) -> Launch:
    """`head_norm` of q and of k, `rope`, `kv_write`: only q_out and the pools are written.

    q, q_out: bf16 [rows, q_heads * head_dim]; k, v: [rows, kv_heads * head_dim]; weights
    [head_dim]; cos, sin: f32 [max_positions, rotated / 2]; positions i32 [rows]; block_table i32
    [rows, blocks]; pools bf16 [pool rows, kv_heads * head_dim].
    """
    head_dim = q_weight.shape[-1]
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}: this kernel holds at most {MAX_HEAD_DIM}")
    rows, q_dim, k_dim = head_shapes(q, k, head_dim)
    half = rotary_half(cos, head_dim)
    columns = matrix("block_table", block_table)[1]
    pool_rows = matrix("k_pool", k_pool)[0]
    disjoint({"q_out": q_out, "k_pool": k_pool, "v_pool": v_pool}, {"q": q, "k": k, "v": v})
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
        rows,
        q_dim,
        k_dim,
        cos.shape[0],
        half,
        head_dim,
        columns,
        block_size,
        pool_rows,
        float(q_eps),
        float(k_eps),
        is_one_plus(q_weight_form),
        is_one_plus(k_weight_form),
    )
    kept = (q, k, v, q_weight, k_weight, cos, sin, positions, block_table, k_pool, v_pool, q_out)
    return bind(_norm_rope_write, arguments, kept)
