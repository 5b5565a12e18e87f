"""Twins of the moves."""

from __future__ import annotations

import torch

__all__ = ["concat", "split_heads"]


def split_heads(*, both: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(first, second), which lie head by head one after the other."""
    heads = both.unflatten(-1, (-1, 2, head_dim))
    return heads[..., 0, :].flatten(-2), heads[..., 1, :].flatten(-2)


def concat(*, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """First || second."""
    return torch.cat((first, second), dim=-1)
