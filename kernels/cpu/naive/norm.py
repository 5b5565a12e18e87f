"""Twins of the norms."""

from __future__ import annotations

import torch

from .residual import residual_add
from .rounding import bf16, wide

__all__ = ["add_rms_norm", "head_norm", "rms_norm"]


def rms_norm(
    *, x: torch.Tensor, weight: torch.Tensor, eps: float, weight_form: str = "plain"
) -> torch.Tensor:
    """bf16(bf16(x / rms) * weight), or bf16(x / rms * (1 + weight)) for one_plus."""
    mean = wide(x).square().mean(-1, keepdim=True).float()
    inverse = 1.0 / (mean + torch.tensor(eps, dtype=torch.float32)).sqrt()
    if weight_form == "one_plus":
        return bf16((wide(x) * wide(inverse)).float() * (1 + weight.float()))
    normalised = bf16(wide(x) * wide(inverse))
    return bf16(wide(normalised) * wide(weight))


def head_norm(
    *, x: torch.Tensor, weight: torch.Tensor, eps: float, weight_form: str = "plain"
) -> torch.Tensor:
    """The norm of each head."""
    heads = x.unflatten(-1, (-1, weight.shape[0]))
    return rms_norm(x=heads, weight=weight, eps=eps, weight_form=weight_form).flatten(-2)


def add_rms_norm(
    *,
    stream: torch.Tensor,
    delta: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(total, norm of the rounded total)."""
    total = residual_add(stream=stream, delta=delta)
    return total, rms_norm(x=total, weight=weight, eps=eps, weight_form=weight_form)
