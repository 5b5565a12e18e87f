"""Linear layers over bf16 weights [out, k], and the fused forms that share their dot.

Numerics: the dot of dot.py in float32, bias added in float32, one rounding to bf16. A residual is
added to the ROUNDED value and rounded again; SiLU takes the rounded gate and up.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix, optional_vector
from .dot import TILE, dot, dot_1x4, dot_2x4
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load1, load_i64, store1
from .scalar import add1, silu_mul1
from .simd import round_bf16

__all__ = ["gate_up_silu", "linear", "linear_add", "qkv"]

ROW_BLOCK = 64
"""Rows of x that pass over a weight tile while it is in the nearest cache."""


@device
def _put(total, bias, residual, y, row, column, n):
    if bias != 0:
        total = add1(total, load1(bias, column))
    if residual != 0:
        total = add1(load1(residual, row * n + column), round_bf16(total))
    store1(y, row * n + column, total)


@device
def _put4(totals, bias, residual, y, row, column, n):
    _put(totals[0], bias, residual, y, row, column, n)
    _put(totals[1], bias, residual, y, row, column + 1, n)
    _put(totals[2], bias, residual, y, row, column + 2, n)
    _put(totals[3], bias, residual, y, row, column + 3, n)


@device
def outputs(x, rows, w, bias, residual, y, n, k, low, high):
    """Outputs low..high-1 of every row: y[row, o] = x[row] . w[o] (+ bias[o]) (+ residual)."""
    for block in range(0, rows, ROW_BLOCK):
        stop = min(block + ROW_BLOCK, rows)
        whole = low + (high - low) // TILE * TILE
        for column in range(low, whole, TILE):
            tile = w + 2 * column * k
            for row in range(block, stop - 1, 2):
                t = dot_2x4(tile, x + 2 * row * k, k)
                _put4((t[0], t[1], t[2], t[3]), bias, residual, y, row, column, n)
                _put4((t[4], t[5], t[6], t[7]), bias, residual, y, row + 1, column, n)
            if (stop - block) % 2 == 1:
                row = stop - 1
                totals = dot_1x4(tile, x + 2 * row * k, k)
                _put4(totals, bias, residual, y, row, column, n)
        for column in range(whole, high):
            for row in range(block, stop):
                total = dot(w + 2 * column * k, x + 2 * row * k, k)
                _put(total, bias, residual, y, row, column, n)


@device
def chunk_start(chunk, chunks, n):
    """The first output of a chunk: whole tiles, so that only the last chunk has a tail."""
    return n if chunk == chunks else chunk * n // chunks // TILE * TILE


@kernel
def _linear(arguments, chunk, chunks):
    """Any number of weights over one x, as if they were one: chunks run over all their outputs."""
    x = load_i64(arguments, 0)
    rows = load_i64(arguments, 1)
    k = load_i64(arguments, 2)
    n = load_i64(arguments, 3)
    parts = load_i64(arguments, 4)
    low = chunk_start(chunk, chunks, n)
    high = chunk_start(chunk + 1, chunks, n)
    first = 0
    for part in range(parts):
        at = 5 + 5 * part
        w = load_i64(arguments, at)
        bias = load_i64(arguments, at + 1)
        residual = load_i64(arguments, at + 2)
        y = load_i64(arguments, at + 3)
        size = load_i64(arguments, at + 4)
        start = max(low - first, 0)
        stop = min(high - first, size)
        if start < stop:
            outputs(x, rows, w, bias, residual, y, size, k, start, stop)
        first += size


@device
def _activate(gate, up, gate_bias, up_bias, y, row, column, inter):
    if gate_bias != 0:
        gate = add1(gate, load1(gate_bias, column))
        up = add1(up, load1(up_bias, column))
    value = silu_mul1(round_bf16(gate), round_bf16(up))
    store1(y, row * inter + column, value)


@kernel
def _gate_up_silu(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    gate = load_i64(arguments, 1)
    bias = load_i64(arguments, 2)
    y = load_i64(arguments, 3)
    rows = load_i64(arguments, 4)
    inter = load_i64(arguments, 5)
    k = load_i64(arguments, 6)
    up = gate + 2 * inter * k
    up_bias = 0 if bias == 0 else bias + 2 * inter
    low = chunk_start(chunk, chunks, inter)
    high = chunk_start(chunk + 1, chunks, inter)
    whole = low + (high - low) // TILE * TILE
    for block in range(0, rows, ROW_BLOCK):
        stop = min(block + ROW_BLOCK, rows)
        for column in range(low, whole, TILE):
            at = 2 * column * k
            for row in range(block, stop - 1, 2):
                g = dot_2x4(gate + at, x + 2 * row * k, k)
                u = dot_2x4(up + at, x + 2 * row * k, k)
                for i in range(TILE):
                    _activate(g[i], u[i], bias, up_bias, y, row, column + i, inter)
                for i in range(TILE):
                    _activate(
                        g[i + TILE], u[i + TILE], bias, up_bias, y, row + 1, column + i, inter
                    )
            if (stop - block) % 2 == 1:
                row = stop - 1
                g1 = dot_1x4(gate + at, x + 2 * row * k, k)
                u1 = dot_1x4(up + at, x + 2 * row * k, k)
                for i in range(TILE):
                    _activate(g1[i], u1[i], bias, up_bias, y, row, column + i, inter)
        for column in range(whole, high):
            for row in range(block, stop):
                at = 2 * column * k
                one = dot(gate + at, x + 2 * row * k, k)
                other = dot(up + at, x + 2 * row * k, k)
                _activate(one, other, bias, up_bias, y, row, column, inter)


def linear(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> Launch:
    """Writes x W^T (+ bias) to y [rows, n]: x [rows, k], weight [n, k], bias [n] or None; bf16."""
    return _bind_linear(x, weight, bias, None, y)


def linear_add(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
    """`linear`, then `residual_add`: y = stream + bf16(x W^T (+ bias)), rounded again."""
    return _bind_linear(x, weight, bias, stream, y)


def _bind_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor | None,
    y: torch.Tensor,
) -> Launch:
    rows, k = matrix("x", x)
    n, _ = matrix("weight", weight)
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias, "stream": stream})
    arguments = (
        bf16("x", x, (rows, k)),
        rows,
        k,
        n,
        1,
        bf16("weight", weight, (n, k)),
        optional_vector("bias", bias, n),
        0 if stream is None else bf16("stream", stream, (rows, n)),
        bf16("y", y, (rows, n)),
        n,
    )
    return bind(_linear, arguments, (x, weight, bias, stream, y), 2 * n * k)


def qkv(
    *,
    x: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    v_weight: torch.Tensor,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    v_bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> Launch:
    """Three linears of one x [rows, k] in one launch: q, k, v [rows, their n]."""
    rows, dim = matrix("x", x)
    parts = (("q", q_weight, q_bias, q), ("k", k_weight, k_bias, k), ("v", v_weight, v_bias, v))
    arguments = [bf16("x", x, (rows, dim)), rows, dim, 0, len(parts)]
    for name, weight, bias, y in parts:
        n, _ = matrix(f"{name}_weight", weight)
        arguments += [
            bf16(f"{name}_weight", weight, (n, dim)),
            optional_vector(f"{name}_bias", bias, n),
            0,
            bf16(name, y, (rows, n)),
            n,
        ]
        arguments[3] += n
    read = {"x": x, "q_weight": q_weight, "k_weight": k_weight, "v_weight": v_weight}
    disjoint({"q": q, "k": k, "v": v}, read)
    return bind(_linear, arguments, (*parts, x), 2 * arguments[3] * dim)


def gate_up_silu(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> Launch:
    """`linear` to gate||up, then `silu_mul`: x [rows, k], weight [2 inter, k], y [rows, inter].

    Gate and up are rounded to bf16 first, as the store between the two kernels would have done.
    """
    rows, k = matrix("x", x)
    inter = y.shape[-1]
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias})
    arguments = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (2 * inter, k)),
        optional_vector("bias", bias, 2 * inter),
        bf16("y", y, (rows, inter)),
        rows,
        inter,
        k,
    )
    return bind(_gate_up_silu, arguments, (x, weight, bias, y), 4 * inter * k)
