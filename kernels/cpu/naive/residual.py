"""Twin of the residual add."""

from __future__ import annotations

import torch

from .rounding import bf16, wide

__all__ = ["residual_add"]


def residual_add(*, stream: torch.Tensor, delta: torch.Tensor) -> torch.Tensor:
    """bf16(stream + delta)."""
    return bf16(wide(stream) + wide(delta))
