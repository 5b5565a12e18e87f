"""The weighted sum of a token's experts and its gated shared expert.

Numerics: from +0, choice by choice in the router's order, by fma in float32 of weight and rounded
row; then the shared row times sigmoid(gate) in float32, by fma too; one rounding to bf16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, f32, matrix
from .jit import kernel
from .launch import bind
from .overlap import enter
from .scalar import sigmoid

__all__ = ["blend"]

BLOCK = 256


@kernel
def _blend(chosen, weights, shared, gate, y, dim, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < dim
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(COUNT):
        at = row * COUNT + choice
        value = tl.load(chosen + at * dim + i, mask=here, other=0.0).to(tl.float32)
        total = tl.fma(tl.broadcast_to(tl.load(weights + at), (BLOCK,)), value, total)
    opened = sigmoid(tl.load(gate + row).to(tl.float32))
    value = tl.load(shared + row * dim + i, mask=here, other=0.0).to(tl.float32)
    total = tl.fma(tl.broadcast_to(opened, (BLOCK,)), value, total)
    tl.store(y + row * dim + i, total.to(tl.bfloat16), mask=here)


def blend(
    *,
    rows: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
    y: torch.Tensor,
) -> object:
    """The sum of weights * rows and of sigmoid(shared_gate) * shared, into y.

    rows: bf16 [n * top_k, dim], row r being choice r % top_k of token r / top_k; weights: f32 [n,
    top_k]; shared, y: bf16 [n, dim]; shared_gate: bf16 [n, 1].
    """
    tokens, count = matrix("weights", weights)
    dim = matrix("y", y)[1]
    read = {"rows": rows, "weights": weights, "shared": shared, "shared_gate": shared_gate}
    disjoint({"y": y}, read)
    arguments = (
        bf16("rows", rows, (tokens * count, dim)),
        f32("weights", weights, (tokens, count)),
        bf16("shared", shared, (tokens, dim)),
        bf16("shared_gate", shared_gate, (tokens, 1)),
        bf16("y", y, (tokens, dim)),
        dim,
        count,
        BLOCK,
    )
    return bind(_blend, (tokens, triton.cdiv(dim, BLOCK)), arguments)
