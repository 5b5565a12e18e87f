"""Twin of SiLU times up."""

from __future__ import annotations

import torch

from .rounding import bf16, wide

__all__ = ["silu_mul"]


def silu_mul(*, gate_up: torch.Tensor) -> torch.Tensor:
    """bf16(bf16(silu(gate)) * up)."""
    gate, up = wide(gate_up).chunk(2, dim=-1)
    return bf16(wide(bf16(gate / (1 + (-gate).exp()))) * up)
