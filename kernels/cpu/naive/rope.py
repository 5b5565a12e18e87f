"""Twins of the rotary positions."""

from __future__ import annotations

import torch

from .kv import kv_write
from .rounding import bf16, wide

__all__ = ["rope", "rope_write"]


def _rotate(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, positions: torch.Tensor, head_dim: int
) -> torch.Tensor:
    half = cos.shape[1]
    heads = wide(x).unflatten(-1, (-1, head_dim))
    a, b, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    c, s = (wide(table)[positions.long()][:, None] for table in (cos, sin))
    return bf16(torch.cat((a * c - b * s, b * c + a * s, rest), dim=-1)).flatten(-2)


def rope(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated q and k."""
    return (
        _rotate(q, cos, sin, positions, head_dim),
        _rotate(k, cos, sin, positions, head_dim),
    )


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
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(rotated q, new k pool, new v pool)."""
    rotated_q, rotated_k = rope(q=q, k=k, cos=cos, sin=sin, positions=positions, head_dim=head_dim)
    pools = kv_write(
        k=rotated_k,
        v=v,
        positions=positions,
        block_table=block_table,
        block_size=block_size,
        k_pool=k_pool,
        v_pool=v_pool,
    )
    return rotated_q, *pools
