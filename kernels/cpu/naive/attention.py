"""Twin of the paged attention: softmax over all tokens at once."""

from __future__ import annotations

import torch

from .kv import pool_rows
from .rounding import bf16, wide

__all__ = ["paged_attention"]


def paged_attention(
    *,
    q: torch.Tensor,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    head_dim: int,
    scale: float,
) -> torch.Tensor:
    """softmax(q k^T scale) v over tokens 0..positions[row]."""
    heads_q = wide(q).unflatten(-1, (-1, head_dim))
    rows = []
    for row, position in enumerate(positions):
        tokens = pool_rows(torch.arange(int(position) + 1), block_table[row], block_size)
        k, v = (wide(pool[tokens]).unflatten(-1, (-1, head_dim)) for pool in (k_pool, v_pool))
        group = heads_q.shape[1] // k.shape[1]
        k, v = (tensor.repeat_interleave(group, dim=1) for tensor in (k, v))
        weights = (torch.einsum("hd,thd->ht", heads_q[row], k) * scale).softmax(-1)
        rows.append(torch.einsum("ht,thd->hd", weights, v).flatten())
    return bf16(torch.stack(rows))
