"""The paged KV cache: where a token's row lies, and the write of new rows.

Token t of a row's sequence lies in pool row table[t // block_size] * block_size + t % block_size.
Rows are written side by side: two rows of one step never own one place, but for padding rows, whose
block nobody reads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import enter

__all__ = ["kv_write", "pool_row"]

BLOCK = 1024


@device
def pool_row(table, token, columns, pool_rows, SIZE: tl.constexpr):
    """The pool row (int64) of each token, or -1 where the table or the pool ends before it."""
    column = token // SIZE
    listed = (token >= 0) & (column < columns)
    block = tl.load(table + column, mask=listed, other=-1).to(tl.int64)
    row = block * SIZE + token % SIZE
    return tl.where(listed & (block >= 0) & (row < pool_rows), row, -1)


@kernel
def _kv_write(
    k, v, k_pool, v_pool, positions, table, dim, columns, pool_rows, SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    enter()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    target = pool_row(table + row * columns, tl.load(positions + row), columns, pool_rows, SIZE)
    here = (i < dim) & (target >= 0)
    key = tl.load(k + row * dim + i, mask=here, other=0.0)
    value = tl.load(v + row * dim + i, mask=here, other=0.0)
    tl.store(k_pool + target * dim + i, key, mask=here)
    tl.store(v_pool + target * dim + i, value, mask=here)


def kv_write(
    *,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
) -> object:
    """Writes k and v [rows, kv_heads * head_dim] to the pools [pool rows, same] (bf16).

    positions: i32 [rows]; block_table: i32 [rows, blocks]. A row whose position lies outside its
    table or the pool is not written.
    """
    rows, dim = matrix("k", k)
    columns = matrix("block_table", block_table)[1]
    pool_rows = matrix("k_pool", k_pool)[0]
    disjoint({"k_pool": k_pool, "v_pool": v_pool}, {"k": k, "v": v, "positions": positions})
    arguments = (
        bf16("k", k, (rows, dim)),
        bf16("v", v, (rows, dim)),
        bf16("k_pool", k_pool, (pool_rows, dim)),
        bf16("v_pool", v_pool, (pool_rows, dim)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
        dim,
        columns,
        pool_rows,
        block_size,
        BLOCK,
    )
    return bind(_kv_write, (rows, triton.cdiv(dim, BLOCK)), arguments)
