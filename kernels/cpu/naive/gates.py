"""Twins of the gates."""

from __future__ import annotations

import torch

from .linear import linear
from .rounding import bf16, wide

__all__ = ["gdn_gates", "linear_gates", "sigmoid_gate_mul"]


def gdn_gates(
    *, ba: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(decay = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b)), in float32."""
    b, a = wide(ba).chunk(2, dim=-1)
    shifted = a + wide(dt_bias)
    softplus = torch.logaddexp(shifted, torch.zeros_like(shifted))
    return (-wide(a_log).exp() * softplus).float(), b.sigmoid().float()


def linear_gates(
    *, x: torch.Tensor, weight: torch.Tensor, a_log: torch.Tensor, dt_bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The linear to b||a, then the gates."""
    return gdn_gates(ba=linear(x=x, weight=weight, bias=None), a_log=a_log, dt_bias=dt_bias)


def sigmoid_gate_mul(*, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """bf16(x * bf16(sigmoid(gate)))."""
    return bf16(wide(x) * wide(bf16(wide(gate).sigmoid())))
