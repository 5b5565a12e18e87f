"""The residual add: one float32 sum, one rounding to bf16."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import bind
from .overlap import enter

__all__ = ["residual_add"]

BLOCK = 1024


@kernel
def _residual_add(stream, delta, y, size, BLOCK: tl.constexpr):
    enter()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < size
    total = tl.load(stream + i, mask=here, other=0.0).to(tl.float32)
    total = total + tl.load(delta + i, mask=here, other=0.0).to(tl.float32)
    tl.store(y + i, total.to(tl.bfloat16), mask=here)


def residual_add(*, stream: torch.Tensor, delta: torch.Tensor, y: torch.Tensor) -> object:
    """The sum stream + delta, rounded, into y; all bf16 [rows, dim]."""
    rows, dim = matrix("stream", stream)
    disjoint({"y": y}, {"stream": stream, "delta": delta})
    arguments = (
        bf16("stream", stream, (rows, dim)),
        bf16("delta", delta, (rows, dim)),
        bf16("y", y, (rows, dim)),
        rows * dim,
        BLOCK,
    )
    return bind(_residual_add, (triton.cdiv(rows * dim, BLOCK),), arguments)
