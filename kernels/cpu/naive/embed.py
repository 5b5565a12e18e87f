"""Twin of embed."""

from __future__ import annotations

import torch

__all__ = ["embed"]


def embed(*, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the table; NaN for an id outside it."""
    inside = (token_ids >= 0) & (token_ids < table.shape[0])
    rows = table[token_ids.long().clamp(0, table.shape[0] - 1)]
    return torch.where(inside[:, None], rows, torch.full_like(rows, float("nan")))
