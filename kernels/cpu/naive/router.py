"""Twins of the choice of experts."""

from __future__ import annotations

import torch

from .linear import linear
from .rounding import wide

__all__ = ["router_top_k", "top_k"]


def top_k(*, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights, ids) of the greatest softmax scores, the lower id of a tie first."""
    scores = wide(logits).softmax(-1).float()
    order = scores.sort(dim=-1, descending=True, stable=True)
    chosen = wide(order.values[:, :count])
    return (chosen / chosen.sum(-1, keepdim=True)).float(), order.indices[:, :count].int()


def router_top_k(
    *, x: torch.Tensor, weight: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The linear to logits, then the choice."""
    return top_k(logits=linear(x=x, weight=weight, bias=None), count=count)
