"""Twin of the KV write."""

from __future__ import annotations

import torch

__all__ = ["kv_write", "pool_rows"]


def pool_rows(tokens: torch.Tensor, table: torch.Tensor, block_size: int) -> torch.Tensor:
    """The pool rows of tokens of one sequence, by its own block table."""
    tokens = tokens.long()
    return table.long()[tokens // block_size] * block_size + tokens % block_size


def kv_write(
    *,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pools with the new rows, written in row order."""
    k_pool, v_pool = k_pool.clone(), v_pool.clone()
    for row, position in enumerate(positions):
        at = pool_rows(position, block_table[row], block_size)
        k_pool[at], v_pool[at] = k[row], v[row]
    return k_pool, v_pool
