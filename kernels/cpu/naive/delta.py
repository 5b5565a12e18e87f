"""Twins of the gated delta rule; states are returned, not written."""

from __future__ import annotations

import torch

from .gated_norm import gated_rms_norm
from .rounding import wide

__all__ = ["gdn_recurrence", "recurrence_norm"]


def gdn_recurrence(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y, new states, new steps): S e^decay, then S + k (beta (v - S^T k))^T, then S^T q."""
    heads = decay.shape[1]
    dk, dv, group = k_dim, h.shape[1] // heads // k_dim, heads // k_heads
    state = wide(h).view(len(h), heads, dk, dv).clone()
    sizes = (k_heads * dk, k_heads * dk, heads * dv)
    q, k, v = (part.unflatten(-1, (-1, dim)) for part, dim in zip(
        wide(qkv).split(sizes, dim=-1), (dk, dk, dv), strict=True
    ))  # fmt: skip
    q, k = (part.repeat_interleave(group, dim=1) for part in (q, k))
    rows, steps = [], wide(steps).clone()
    for row, (slot, step) in enumerate(zip(slots.tolist(), step_rows.tolist(), strict=True)):
        old = state[slot] * wide(decay)[row].exp()[:, None, None]
        error = v[row] - torch.einsum("hkv,hk->hv", old, k[row])
        new = old + torch.einsum("hk,hv->hkv", k[row], wide(beta)[row][:, None] * error)
        state[slot] = new
        if 0 <= step < len(steps):
            steps[step] = new.flatten()
        rows.append(torch.einsum("hkv,hk->hv", new, q[row] * scale).flatten())
    return torch.stack(rows).float(), state.flatten(1).float(), steps.float()


def recurrence_norm(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    gate_offset: int,
    k_heads: int,
    k_dim: int,
    scale: float,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(gated norm of y, new states, new steps)."""
    core, state, kept = gdn_recurrence(
        qkv=qkv, decay=decay, beta=beta, h=h, slots=slots, steps=steps, step_rows=step_rows,
        k_heads=k_heads, k_dim=k_dim, scale=scale,
    )  # fmt: skip
    normed = gated_rms_norm(x=core, weight=weight, gate=gate, gate_offset=gate_offset, eps=eps)
    return normed, state, kept
