"""Twins of the linears."""

from __future__ import annotations

import torch

from .activation import silu_mul
from .residual import residual_add
from .rounding import bf16, wide

__all__ = ["gate_up_silu", "linear", "linear_add", "qkv"]


def linear(*, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """bf16(x W^T + bias)."""
    total = wide(x) @ wide(weight).T
    return bf16(total if bias is None else total + wide(bias))


def linear_add(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stream: torch.Tensor
) -> torch.Tensor:
    """The linear, then the residual add."""
    return residual_add(stream=stream, delta=linear(x=x, weight=weight, bias=bias))


def qkv(
    *,
    x: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    v_weight: torch.Tensor,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    v_bias: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Three linears."""
    return (
        linear(x=x, weight=q_weight, bias=q_bias),
        linear(x=x, weight=k_weight, bias=k_bias),
        linear(x=x, weight=v_weight, bias=v_bias),
    )


def gate_up_silu(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The linear to gate||up, then silu_mul."""
    return silu_mul(gate_up=linear(x=x, weight=weight, bias=bias))
