"""Twin of norm, rotation and KV write in one."""

from __future__ import annotations

import torch

from .norm import head_norm
from .rope import rope_write

__all__ = ["norm_rope_write"]


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
    q_weight_form: str = "plain",
    k_weight_form: str = "plain",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(normed and rotated q, new k pool, new v pool)."""
    return rope_write(
        q=head_norm(x=q, weight=q_weight, eps=q_eps, weight_form=q_weight_form),
        k=head_norm(x=k, weight=k_weight, eps=k_eps, weight_form=k_weight_form),
        v=v,
        cos=cos,
        sin=sin,
        positions=positions,
        block_table=block_table,
        block_size=block_size,
        k_pool=k_pool,
        v_pool=v_pool,
        head_dim=q_weight.shape[0],
    )
