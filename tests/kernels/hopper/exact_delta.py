"""The gated delta rule row by row in float64, and how far float32 in chunks may be from it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["GATES", "Exact", "exact", "gated_rows"]

F64 = torch.float64
LOST = 2.0**-22
"""Of a product of float32 in three of TF32: what the product of the two rests would add."""
ROOM = 64 * LOST
"""Of what a state's column may be long. A sum of decays down to -110 (below, all is gone) rounds to
2^-18 in the exponent, which is 16 LOST; the two long sums of a row, over at most 256 elements of k
and 64 rows, round once in eight products, 40 times; and the products themselves lose LOST."""
LEAST = 1e-36
"""Of the same: what float32 has no normal numbers for is lost."""


@dataclass(frozen=True)
class Exact:
    """What it gives and how far off each value may be, float64: y [rows, ..], h [slots, ..]."""

    y: torch.Tensor
    h: torch.Tensor
    y_room: torch.Tensor
    h_room: torch.Tensor

    def near(self, y: torch.Tensor, h: torch.Tensor) -> bool:
        """Whether y and h are; where a row is NaN, the other must be."""
        lost = self.y.isnan()
        rows = torch.where(lost, y.isnan(), (y - self.y).abs() <= self.y_room)
        return bool(rows.all()) and bool(((h - self.h).abs() <= self.h_room).all())


def exact(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
) -> Exact:
    """As `chunked.gdn_chunked` takes it, on the host.

    The length of a state's column is at most e^decay of what it was, plus beta |v|: with |k| = 1
    and 0 <= beta <= 1 the rule takes away of it, and adds no more. y is at most that times scale.
    """
    rows, heads = decay.shape
    group, values = heads // k_heads, qkv.shape[1] - 2 * k_heads * k_dim
    q, k, v = qkv.to(F64).split((k_heads * k_dim, k_heads * k_dim, values), 1)
    q, k = (x.reshape(rows, k_heads, k_dim).repeat_interleave(group, 1) for x in (q, k))
    v = v.reshape(rows, heads, values // heads)
    states = h.to(F64).reshape(len(h), heads, k_dim, values // heads).clone()
    lengths = states.norm(dim=2)
    y, room = torch.full_like(v, float("nan")), torch.zeros_like(v)
    for row, slot in enumerate(slots.tolist()):
        if not 0 <= slot < len(h):
            continue
        kept, strength = decay[row].to(F64).exp()[:, None], beta[row].to(F64)[:, None]
        state = states[slot] * kept[:, :, None]
        change = strength * (v[row] - (state * k[row][:, :, None]).sum(1))
        states[slot] = state + k[row][:, :, None] * change[:, None, :]
        lengths[slot] = lengths[slot] * kept + strength * v[row].abs()
        y[row] = (states[slot] * q[row][:, :, None]).sum(1) * scale
        room[row] = ROOM * lengths[slot] * scale + LEAST * (1 + lengths[slot])
    state_room = (ROOM * lengths + LEAST * (1 + lengths))[:, :, None].expand_as(states)
    return Exact(y.reshape(rows, -1), states.reshape(h.shape), room.reshape(rows, -1),
                 state_room.reshape(h.shape))  # fmt: skip


GATES = (
    "mixed", "no decay", "all gone", "gone now and then", "all forgotten", "all taken over",
    "one key",
)  # fmt: skip
"""Kinds of rows: what decays and betas are, or that every row has the same k."""


def gated_rows(
    gates: str, rows: int, k_heads: int, heads: int, k_dim: int, v_dim: int, slots: int = 4
) -> dict[str, torch.Tensor | float | int]:
    """Arguments of the rule; q and k have length 1, as their norm leaves them."""
    seed = torch.Generator().manual_seed(rows)

    def uniform() -> torch.Tensor:
        return torch.rand(rows, heads, generator=seed)

    qkv = torch.randn(rows, 2 * k_heads * k_dim + heads * v_dim, generator=seed)
    both = qkv[:, : 2 * k_heads * k_dim].view(rows, 2 * k_heads, k_dim)
    both /= both.norm(dim=-1, keepdim=True)
    decay, beta = -2 * uniform(), uniform()
    match gates:
        case "no decay":
            decay = torch.zeros_like(decay)
        case "all gone":
            decay = torch.full_like(decay, -20.0)
        case "gone now and then":
            decay = torch.where(uniform() < 0.2, -1000 * uniform(), decay / 100)
        case "all forgotten":
            decay, beta = decay / 100, torch.zeros_like(beta)
        case "all taken over":
            decay, beta = decay / 100, torch.ones_like(beta)
        case "one key":
            both[:, k_heads:] = both[:1, k_heads:].clone()
            decay, beta = torch.zeros_like(decay), torch.ones_like(beta)
    return {
        "qkv": qkv, "decay": decay, "beta": beta, "k_heads": k_heads, "k_dim": k_dim,
        "scale": k_dim**-0.5, "h": torch.randn(slots, heads * k_dim * v_dim, generator=seed),
    }  # fmt: skip
