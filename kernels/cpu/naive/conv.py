"""Twins of the convolution over windows and of the L2 norm; states are returned, not written."""

from __future__ import annotations

import torch

from .rounding import wide

__all__ = ["conv1d_update", "conv_l2_norm", "l2_norm"]


def conv1d_update(
    *, x: torch.Tensor, weight: torch.Tensor, conv: torch.Tensor, slots: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, new windows), row after row."""
    taps = wide(weight).view(-1, 4)
    windows = wide(conv).view(len(conv), -1, 4).clone()
    rows = torch.empty(len(x), len(taps), dtype=torch.float64)
    for row, slot in enumerate(slots.tolist()):
        windows[slot] = torch.cat((windows[slot][:, 1:], wide(x[row, : len(taps), None])), dim=-1)
        total = (windows[slot] * taps).sum(-1)
        rows[row] = total / (1 + (-total).exp())
    return rows.float(), windows.flatten(1).float()


def conv_l2_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    heads: int,
    head_dim: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(normed y, new windows)."""
    y, windows = conv1d_update(x=x, weight=weight, conv=conv, slots=slots)
    return l2_norm(x=y, heads=heads, head_dim=head_dim, eps=eps), windows


def l2_norm(*, x: torch.Tensor, heads: int, head_dim: int, eps: float) -> torch.Tensor:
    """The first heads over sqrt(sum of squares + eps)."""
    normed, rest = wide(x).split((heads * head_dim, x.shape[1] - heads * head_dim), dim=-1)
    parts = normed.unflatten(-1, (heads, head_dim))
    parts = parts / (parts.square().sum(-1, keepdim=True) + eps).sqrt()
    return torch.cat((parts.flatten(-2), rest), dim=-1).float()
