"""What a hand-written step leaves to be read.

Shapes: R rows, S head rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["StepOutputs"]


@dataclass(frozen=True, slots=True)
class StepOutputs:
    """Buffers that a bound step fills; the next step of the same section overwrites them."""

    logits_SV: torch.Tensor
    """bf16, of the last S rows"""
    tokens_S1: torch.Tensor
    """i32: the greedy choice of each row of logits, the lowest index of a tie"""
    hidden_RD: torch.Tensor
    """bf16: the residual stream of every row behind the last layer, before the final norm"""
