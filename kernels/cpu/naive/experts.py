"""Twins of the routed experts."""

from __future__ import annotations

import torch

from .activation import silu_mul
from .linear import linear

__all__ = ["expert_down", "expert_gate_up", "gate_up_silu"]


def expert_gate_up(*, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Each row through each of its experts."""
    return expert_down(x=x.repeat_interleave(ids.shape[1], dim=0), ids=ids, weight=weight)


def expert_down(*, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Row r through the expert of choice r."""
    rows = [
        linear(x=x[row : row + 1], weight=weight[expert], bias=None)
        for row, expert in enumerate(ids.flatten().tolist())
    ]
    return torch.cat(rows)


def gate_up_silu(*, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The experts' gate||up, then silu_mul."""
    return silu_mul(gate_up=expert_gate_up(x=x, ids=ids, weight=weight))
