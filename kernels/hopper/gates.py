"""The gates of the gated delta rule, and the output gate of attention.

Numerics: decay = -e^A_log softplus(a + dt_bias) and beta = sigmoid(b) in float32 from bf16 values,
stored as float32 (Hugging Face rounds beta to bf16). An attention's gate is a sigmoid rounded to
bf16, then the product is rounded again.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, f32, matrix
from .dot import tile_columns, tile_rows
from .jit import kernel
from .launch import bind
from .linear import two_products
from .linears import Linears
from .overlap import enter
from .scalar import decay1, round_bf16, sigmoid, sigmoid_mul1
from .stream import bind_stream, stream_of
from .tiles import tile_for

__all__ = ["gdn_gates", "linear_gates", "sigmoid_gate_mul"]

BLOCK = 512


@kernel
def _gdn_gates(ba, a_log, dt_bias, decay, beta, heads, size, BLOCK: tl.constexpr):
    enter()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    row, head = at // heads, at % heads
    b = tl.load(ba + 2 * row * heads + head, mask=here, other=0.0).to(tl.float32)
    a = tl.load(ba + (2 * row + 1) * heads + head, mask=here, other=0.0).to(tl.float32)
    log = tl.load(a_log + head, mask=here, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + head, mask=here, other=0.0).to(tl.float32)
    tl.store(decay + at, decay1(log, a, bias), mask=here)
    tl.store(beta + at, sigmoid(b), mask=here)


@kernel
def _linear_gates(
    x, w, a_log, dt_bias, decay, beta, rows, heads, k, R: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    enter()
    row, column = tl.program_id(0) * R, tl.program_id(1) * N
    b, a = two_products(x, w, row, column, rows, heads, k, R, N, K, EVEN, SWAP)
    r, head = tile_rows(row, R, SWAP), tile_columns(column, N, SWAP)
    here = (r < rows) & (head < heads)
    log = tl.load(a_log + head, mask=head < heads, other=0.0).to(tl.float32)
    bias = tl.load(dt_bias + head, mask=head < heads, other=0.0).to(tl.float32)
    at = r * heads + head
    tl.store(decay + at, decay1(log, round_bf16(a), bias), mask=here)
    tl.store(beta + at, sigmoid(round_bf16(b)), mask=here)


@kernel
def _sigmoid_gate_mul(x, gate, y, size, BLOCK: tl.constexpr):
    enter()
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = i < size
    value = tl.load(x + i, mask=here, other=0.0).to(tl.float32)
    z = tl.load(gate + i, mask=here, other=0.0).to(tl.float32)
    tl.store(y + i, sigmoid_mul1(z, value).to(tl.bfloat16), mask=here)


def gdn_gates(
    *,
    ba: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> object:
    """The state's decay, as a logarithm, and the step size beta of each value head.

    ba: bf16 [rows, 2 heads], b||a; a_log, dt_bias: bf16 [heads]; decay, beta: f32 [rows, heads].
    """
    rows, heads = matrix("decay", decay)
    disjoint({"decay": decay, "beta": beta}, {"ba": ba, "a_log": a_log, "dt_bias": dt_bias})
    arguments = (
        bf16("ba", ba, (rows, 2 * heads)),
        bf16("a_log", a_log, (heads,)),
        bf16("dt_bias", dt_bias, (heads,)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        heads,
        rows * heads,
        BLOCK,
    )
    return bind(_gdn_gates, (triton.cdiv(rows * heads, BLOCK),), arguments)


def linear_gates(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> object:
    """`linear` to b||a, rounded to bf16, then `gdn_gates`: x [rows, k], weight [2 heads, k]."""
    rows, k = matrix("x", x)
    heads = matrix("decay", decay)[1]
    read = {"x": x, "weight": weight, "a_log": a_log, "dt_bias": dt_bias}
    disjoint({"decay": decay, "beta": beta}, read)
    tensors = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (2 * heads, k)),
        bf16("a_log", a_log, (heads,)),
        bf16("dt_bias", dt_bias, (heads,)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
    )
    linears = Linears(x, (weight,), (), (decay, beta), gates=(a_log, dt_bias))
    if streamed := stream_of(linears):
        return bind_stream(linears, streamed)
    tile = tile_for(rows, heads, k, weights=2)
    arguments = (
        *tensors,
        rows,
        heads,
        k,
        *tile.constants,
        k % tile.k == 0,
        tile.swap,
    )
    grid = (triton.cdiv(rows, tile.r), triton.cdiv(heads, tile.n))
    return bind(_linear_gates, grid, arguments, tile.warps, tile.stages)


def sigmoid_gate_mul(*, x: torch.Tensor, gate: torch.Tensor, y: torch.Tensor) -> object:
    """X times bf16(sigmoid(gate)), into y; all bf16 [rows, dim]."""
    rows, dim = matrix("x", x)
    disjoint({"y": y}, {"x": x, "gate": gate})
    arguments = (
        bf16("x", x, (rows, dim)),
        bf16("gate", gate, (rows, dim)),
        bf16("y", y, (rows, dim)),
        rows * dim,
        BLOCK,
    )
    return bind(_sigmoid_gate_mul, (triton.cdiv(rows * dim, BLOCK),), arguments)
