"""What every hand-written forward gives: bound launches, and where a step's outputs lie.

Shapes: S rows of logits, V vocabulary, R rows of the step, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from metpipe.engine.program import Launch

__all__ = ["Kernels", "LegacyForward", "LegacyStep", "head_rows"]

Kernels = Mapping[str, Callable[..., Launch]]


@dataclass(frozen=True, slots=True)
class LegacyStep:
    """The launches of one (mode, rows), in order, and its outputs, overwritten by the next step."""

    launches: tuple[Launch, ...]
    logits_SV: torch.Tensor
    tokens_S1: torch.Tensor
    """the greedy choice of each row of logits, i32"""
    hidden_RD: torch.Tensor | None
    """the stream before the final norm; None in a family without draft heads"""


class LegacyForward(Protocol):
    """A family's forward, written by hand: one kernel per op, a buffer per name."""

    def bind(self, mode: str, rows: int) -> LegacyStep:
        """The launches of a step of `rows` rows."""

    def close(self) -> None:
        """Give every buffer back."""


def head_rows(mode: str, rows: int) -> int:
    """Rows of logits: a prefill's are those of its last token, other modes have all."""
    return 1 if mode == "prefill" else rows
