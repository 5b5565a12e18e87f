"""Twins of the weighted sum of experts."""

from __future__ import annotations

import torch

from .rounding import bf16, wide

__all__ = ["blend"]


def blend(
    *,
    rows: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
) -> torch.Tensor:
    """bf16(sum of weights * rows + sigmoid(shared_gate) * shared)."""
    choices = wide(rows).unflatten(0, tuple(weights.shape))
    routed = (wide(weights)[..., None] * choices).sum(1)
    return bf16(routed + wide(shared_gate).sigmoid() * wide(shared))
