"""bf16 values as float64, and back with the one NaN."""

from __future__ import annotations

import torch

__all__ = ["CANONICAL_NAN", "bf16", "wide"]

CANONICAL_NAN = 0x7FC0


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same values in float64."""
    return tensor.double()


def bf16(tensor: torch.Tensor) -> torch.Tensor:
    """Rounds to float32, then to bf16; every NaN becomes 0x7FC0."""
    rounded = tensor.float().bfloat16()
    canonical = torch.tensor(CANONICAL_NAN, dtype=torch.int16).view(torch.bfloat16)
    return torch.where(rounded.isnan(), canonical, rounded)
