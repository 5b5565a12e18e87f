"""Twin of the gated norm."""

from __future__ import annotations

import torch

from .rounding import bf16, wide

__all__ = ["gated_rms_norm"]


def gated_rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    gate_offset: int,
    eps: float,
) -> torch.Tensor:
    """bf16(bf16(bf16(x / rms) * weight) * silu(z)), head by head."""
    heads = wide(x).unflatten(-1, (-1, weight.shape[0]))
    mean = heads.square().mean(-1, keepdim=True)
    normed = bf16(wide(bf16(heads / (mean + eps).sqrt())) * wide(weight)).flatten(-2)
    z = wide(gate[:, gate_offset : gate_offset + x.shape[1]])
    return bf16(wide(normed) * (z / (1 + (-z).exp())))
