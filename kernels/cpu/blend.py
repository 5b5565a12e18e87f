"""The weighted sum of a token's experts and its gated shared expert.

Numerics: from +0, choice by choice in the router's order, by fma in float32 of weight and rounded
row; then the shared row times sigmoid(gate) in float32, by fma too; one rounding to bf16.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, f32, matrix
from .jit import kernel
from .launch import Launch, bind
from .memory import load1, load16, load_f32, load_i64, store1, store16
from .scalar import sigmoid
from .simd import LANES, fma, splat, zero

__all__ = ["blend"]

PLUS_ZERO = np.float32(0.0)


@kernel
def _blend(arguments, chunk, chunks):
    rows_in = load_i64(arguments, 0)
    weights = load_i64(arguments, 1)
    shared = load_i64(arguments, 2)
    gate = load_i64(arguments, 3)
    y = load_i64(arguments, 4)
    rows = load_i64(arguments, 5)
    count = load_i64(arguments, 6)
    dim = load_i64(arguments, 7)
    whole = dim - dim % LANES
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        open_ = sigmoid(load1(gate, row))
        for i in range(0, whole, LANES):
            total = zero()
            for choice in range(row * count, (row + 1) * count):
                total = fma(
                    splat(load_f32(weights, choice)), load16(rows_in, choice * dim + i), total
                )
            total = fma(splat(open_), load16(shared, row * dim + i), total)
            store16(y, row * dim + i, total)
        for i in range(whole, dim):
            one = PLUS_ZERO
            for choice in range(row * count, (row + 1) * count):
                one = fma(load_f32(weights, choice), load1(rows_in, choice * dim + i), one)
            store1(y, row * dim + i, fma(open_, load1(shared, row * dim + i), one))


def blend(
    *,
    rows: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
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
        tokens,
        count,
        dim,
    )
    return bind(_blend, arguments, (*read.values(), y), 2 * tokens * count * dim)
