"""Twins of the experts' last products and their weighted sum in one."""

from __future__ import annotations

import torch

from .blend import blend
from .experts import expert_down
from .linear import linear

__all__ = ["down_blend", "shared_down_blend"]


def down_blend(
    *,
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
) -> torch.Tensor:
    """The experts' down, then the sum."""
    rows = expert_down(x=x, ids=ids, weight=weight)
    return blend(rows=rows, weights=weights, shared=shared, shared_gate=shared_gate)


def shared_down_blend(
    *,
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    shared_x: torch.Tensor,
    shared_weight: torch.Tensor,
    gate_x: torch.Tensor,
    gate_weight: torch.Tensor,
) -> torch.Tensor:
    """Both experts' down and the gate's logit, then the sum."""
    shared = linear(x=shared_x, weight=shared_weight, bias=None)
    gate = linear(x=gate_x, weight=gate_weight, bias=None)
    return down_blend(x=x, ids=ids, weight=weight, weights=weights, shared=shared, shared_gate=gate)
