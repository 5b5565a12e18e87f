"""Twins of the convolution over windows and of the L2 norm; states are returned, not written."""

from __future__ import annotations

import torch

from .rounding import wide

__all__ = ["conv1d_update", "conv_l2_norm", "l2_norm"]


def conv1d_update(
    *,
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, new windows, new steps), row after row."""
    weight = wide(taps).view(-1, 4)
    windows = wide(conv).view(len(conv), -1, 4).clone()
    rows = torch.empty(len(x), len(weight), dtype=torch.float64)
    steps = wide(steps).clone()
    for row, (slot, step) in enumerate(zip(slots.tolist(), step_rows.tolist(), strict=True)):
        windows[slot] = torch.cat((windows[slot][:, 1:], wide(x[row, : len(weight), None])), dim=-1)
        total = (windows[slot] * weight).sum(-1)
        rows[row] = total / (1 + (-total).exp())
        if 0 <= step < len(steps):
            steps[step] = windows[slot].flatten()
    return rows.float(), windows.flatten(1).float(), steps.float()


def conv_l2_norm(
    *,
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    k_heads: int,
    k_dim: int,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(normed y, new windows, new steps)."""
    y, windows, kept = conv1d_update(
        x=x, taps=taps, conv=conv, slots=slots, steps=steps, step_rows=step_rows
    )
    return l2_norm(x=y, k_heads=k_heads, k_dim=k_dim, eps=eps), windows, kept


def l2_norm(*, x: torch.Tensor, k_heads: int, k_dim: int, eps: float) -> torch.Tensor:
    """Q and k heads over sqrt(sum of squares + eps)."""
    normed, rest = wide(x).tensor_split((2 * k_heads * k_dim,), dim=-1)
    parts = normed.unflatten(-1, (2 * k_heads, k_dim))
    parts = parts / (parts.square().sum(-1, keepdim=True) + eps).sqrt()
    return torch.cat((parts.flatten(-2), rest), dim=-1).float()
