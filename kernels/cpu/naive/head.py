"""Twin of the argmax."""

from __future__ import annotations

import torch

__all__ = ["argmax"]


def argmax(*, logits: torch.Tensor) -> torch.Tensor:
    """The lowest index of each row's greatest element, NaN counted as -inf, i32."""
    values = logits.float()
    values = torch.where(values.isnan(), torch.full_like(values, -torch.inf), values)
    best = values.max(dim=-1, keepdim=True).values
    return (values == best).int().argmax(dim=-1).int()
