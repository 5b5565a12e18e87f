"""The paged KV cache: where a token's row lies, and the write of new rows.

Token t of a row's sequence lies in pool row table[t // block_size] * block_size + t % block_size.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import copy_bytes, load_i32, load_i64

__all__ = ["kv_write"]


@device
def pool_row(table, token, columns, block_size, pool_rows):
    """The pool row of a token, or -1 where the table or the pool ends before it."""
    column = token // block_size
    if token < 0 or column >= columns:
        return -1
    row = load_i32(table, column) * block_size + token % block_size
    return row if 0 <= row < pool_rows else -1


@device
def write_row(pool, source, target, dim):
    """Copies one bf16 row into pool row `target`."""
    copy_bytes(pool + 2 * target * dim, source, 2 * dim)


@kernel
def _kv_write(arguments, chunk, chunks):
    k = load_i64(arguments, 0)
    v = load_i64(arguments, 1)
    k_pool = load_i64(arguments, 2)
    v_pool = load_i64(arguments, 3)
    positions = load_i64(arguments, 4)
    table = load_i64(arguments, 5)
    rows = load_i64(arguments, 6)
    dim = load_i64(arguments, 7)
    columns = load_i64(arguments, 8)
    block_size = load_i64(arguments, 9)
    pool_rows = load_i64(arguments, 10)
    for row in range(rows):  # one chunk: padding rows share a block, and the last must win
        token = load_i32(positions, row)
        target = pool_row(table + 4 * row * columns, token, columns, block_size, pool_rows)
        if target >= 0:
            write_row(k_pool, k + 2 * row * dim, target, dim)
            write_row(v_pool, v + 2 * row * dim, target, dim)


def kv_write(
    *,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
) -> Launch:
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
        rows,
        dim,
        columns,
        block_size,
        pool_rows,
    )
    return bind(_kv_write, arguments, (k, v, positions, block_table, k_pool, v_pool))
