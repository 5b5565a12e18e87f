"""Twin of the gated norm."""

from __future__ import annotations

import torch

from .norm import head_norm
from .rounding import bf16, wide

__all__ = ["gated_rms_norm"]


def gated_rms_norm(
    *, x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, eps: float
) -> torch.Tensor:
    """bf16(head_norm(x) * silu(z)), z being the gate's last columns."""
    z = wide(gate[:, gate.shape[1] - x.shape[1] :])
    return bf16(wide(head_norm(x=x, weight=weight, eps=eps)) * (z / (1 + (-z).exp())))
