"""The residual add: one float32 sum, one rounding to bf16."""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import Launch, bind
from .memory import load_i64
from .norm import add_row

__all__ = ["residual_add"]


@kernel
def _residual_add(arguments, chunk, chunks):
    stream = load_i64(arguments, 0)
    delta = load_i64(arguments, 1)
    y = load_i64(arguments, 2)
    rows = load_i64(arguments, 3)
    dim = load_i64(arguments, 4)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 2 * row * dim
        add_row(stream + at, delta + at, y + at, dim)


def residual_add(*, stream: torch.Tensor, delta: torch.Tensor, y: torch.Tensor) -> Launch:
    """The sum stream + delta, rounded, into y; all bf16 [rows, dim]."""
    rows, dim = matrix("stream", stream)
    disjoint({"y": y}, {"stream": stream, "delta": delta})
    arguments = (
        bf16("stream", stream, (rows, dim)),
        bf16("delta", delta, (rows, dim)),
        bf16("y", y, (rows, dim)),
        rows,
        dim,
    )
    return bind(_residual_add, arguments, (stream, delta, y), 4 * rows * dim)
