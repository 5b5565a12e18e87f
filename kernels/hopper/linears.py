"""What a launch of linears computes: matrices over one x, and what stands around them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["Linears", "Norm", "is_aligned", "three"]

ALIGNED = 16
"""Bytes of a vector."""


@dataclass(frozen=True, slots=True)
class Norm:
    """A residual add and the RMS norm after it, [rows, k]; `total` receives the sum."""

    delta: torch.Tensor
    weight: torch.Tensor
    total: torch.Tensor
    eps: float
    one_plus: bool


@dataclass(frozen=True, slots=True)
class Linears:
    """One to three matrices [n, k] over one x, their biases and outputs."""

    x: torch.Tensor
    weights: tuple[torch.Tensor, ...]
    biases: tuple[torch.Tensor | None, ...]
    outputs: tuple[torch.Tensor, ...]
    residual: torch.Tensor | None = None
    silu: bool = False
    """the matrix is gate above up, the output silu(gate) times up"""
    gates: tuple[torch.Tensor, ...] = ()
    """a_log and dt_bias: the matrix is b above a, the outputs decay and beta in float32"""
    norm: Norm | None = None
    """x is a stream: what is multiplied is the norm of it and what is added to it"""

    @property
    def n(self) -> int:
        """Outputs, or pairs of them."""
        return self.outputs[0].shape[1] if self.gates else sum(y.shape[1] for y in self.outputs)


def is_aligned(*tensors: torch.Tensor) -> bool:
    """Whether rows of these can be copied in whole vectors."""
    return all(tensor.data_ptr() % ALIGNED == 0 for tensor in tensors)


def three(values: Sequence[Any], absent: Any) -> tuple[Any, ...]:
    """Three arguments, those that there are first."""
    return (*values, *(3 - len(values)) * (absent,))
