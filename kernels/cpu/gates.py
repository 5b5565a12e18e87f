"""The gates of the gated delta rule, and the output gate of attention.

Numerics: decay = -e^A_log softplus(a + dt_bias) and beta = sigmoid(b) in float32 from bf16 values,
stored as float32 (Hugging Face rounds beta to bf16). An attention's gate is a sigmoid rounded to
bf16, then the product is rounded again.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, f32, matrix
from .dot import dot
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load1, load16, load_i64, put_f32, store1, store16
from .scalar import decay1, sigmoid, sigmoid_mul1
from .simd import LANES, round_bf16

__all__ = ["gdn_gates", "linear_gates", "sigmoid_gate_mul"]


@device
def put_gates(b, a, a_log, dt_bias, decay, beta, at, head):
    """The gates of one head of one row, to element `at`; b and a are bf16 values."""
    put_f32(decay, at, decay1(load1(a_log, head), a, load1(dt_bias, head)))
    put_f32(beta, at, sigmoid(b))


@kernel
def _gdn_gates(arguments, chunk, chunks):
    ba = load_i64(arguments, 0)
    a_log = load_i64(arguments, 1)
    dt_bias = load_i64(arguments, 2)
    decay = load_i64(arguments, 3)
    beta = load_i64(arguments, 4)
    rows = load_i64(arguments, 5)
    heads = load_i64(arguments, 6)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        for head in range(heads):
            b = load1(ba, 2 * row * heads + head)
            a = load1(ba, (2 * row + 1) * heads + head)
            put_gates(b, a, a_log, dt_bias, decay, beta, row * heads + head, head)


@kernel
def _linear_gates(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    weight = load_i64(arguments, 1)
    a_log = load_i64(arguments, 2)
    dt_bias = load_i64(arguments, 3)
    decay = load_i64(arguments, 4)
    beta = load_i64(arguments, 5)
    rows = load_i64(arguments, 6)
    heads = load_i64(arguments, 7)
    k = load_i64(arguments, 8)
    for head in range(chunk * heads // chunks, (chunk + 1) * heads // chunks):
        for row in range(rows):
            b = round_bf16(dot(weight + 2 * head * k, x + 2 * row * k, k))
            a = round_bf16(dot(weight + 2 * (heads + head) * k, x + 2 * row * k, k))
            put_gates(b, a, a_log, dt_bias, decay, beta, row * heads + head, head)


@kernel
def _sigmoid_gate_mul(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    gate = load_i64(arguments, 1)
    y = load_i64(arguments, 2)
    size = load_i64(arguments, 3)
    groups = (size + LANES - 1) // LANES
    low = chunk * groups // chunks * LANES
    high = min((chunk + 1) * groups // chunks * LANES, size)
    whole = low + (high - low) // LANES * LANES
    for i in range(low, whole, LANES):
        store16(y, i, sigmoid_mul1(load16(gate, i), load16(x, i)))
    for i in range(whole, high):
        store1(y, i, sigmoid_mul1(load1(gate, i), load1(x, i)))


def gdn_gates(
    *,
    ba: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> Launch:
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
        rows,
        heads,
    )
    return bind(_gdn_gates, arguments, (ba, a_log, dt_bias, decay, beta), 128 * rows * heads)


def linear_gates(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
) -> Launch:
    """`linear` to b||a, rounded to bf16, then `gdn_gates`: x [rows, k], weight [2 heads, k]."""
    rows, k = matrix("x", x)
    heads = matrix("decay", decay)[1]
    read = {"x": x, "weight": weight, "a_log": a_log, "dt_bias": dt_bias}
    disjoint({"decay": decay, "beta": beta}, read)
    arguments = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (2 * heads, k)),
        bf16("a_log", a_log, (heads,)),
        bf16("dt_bias", dt_bias, (heads,)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        rows,
        heads,
        k,
    )
    return bind(_linear_gates, arguments, (*read.values(), decay, beta), 4 * heads * k)


def sigmoid_gate_mul(*, x: torch.Tensor, gate: torch.Tensor, y: torch.Tensor) -> Launch:
    """X times bf16(sigmoid(gate)), into y; all bf16 [rows, dim]."""
    rows, dim = matrix("x", x)
    disjoint({"y": y}, {"x": x, "gate": gate})
    arguments = (
        bf16("x", x, (rows, dim)),
        bf16("gate", gate, (rows, dim)),
        bf16("y", y, (rows, dim)),
        rows * dim,
    )
    return bind(_sigmoid_gate_mul, arguments, (x, gate, y), 32 * rows * dim)
