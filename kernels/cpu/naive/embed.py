"""Twin of embed."""

from __future__ import annotations

import torch

__all__ = ["embed"]


def embed(*, token_ids: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Rows of the table; zeros for the id -1, NaN for another one outside it."""
    inside = (token_ids >= 0) & (token_ids < table.shape[0])
    rows = table[token_ids.long().clamp(0, table.shape[0] - 1)]
    outside = torch.full_like(rows, float("nan"))
    outside[token_ids == -1] = 0
    return torch.where(inside[:, None], rows, outside)
