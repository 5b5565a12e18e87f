"""The experts' last products and their weighted sum in one launch, the shared expert's too.

Numerics: those of blend.py, of products rounded to bf16 as they would be stored.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, f32, i32, matrix
from .dot import TILE, dot, dot_1x4
from .experts import expert_count
from .jit import device, kernel
from .launch import Launch, bind
from .linear import chunk_start
from .memory import load1, load_f32, load_i32, load_i64, stack_f32, store1, store_f32
from .scalar import sigmoid
from .simd import fma, round_bf16

__all__ = ["down_blend", "shared_down_blend"]

BLOCK = 64
"""Rows whose gates are kept while they pass over a tile."""
PLUS_ZERO = np.float32(0.0)
NAN = np.float32(np.nan)


@device
def _products(weight, x, k, column, n_tile):
    """Rounded dots of x with weight rows column.. : four, or one and three zeros."""
    if n_tile == TILE:
        t = dot_1x4(weight + 2 * column * k, x, k)
        return round_bf16(t[0]), round_bf16(t[1]), round_bf16(t[2]), round_bf16(t[3])
    one = round_bf16(dot(weight + 2 * column * k, x, k))
    return one, PLUS_ZERO, PLUS_ZERO, PLUS_ZERO


@device
def _add_scaled(scale, t, a):
    return (
        fma(scale, t[0], a[0]),
        fma(scale, t[1], a[1]),
        fma(scale, t[2], a[2]),
        fma(scale, t[3], a[3]),
    )


@kernel
def _down_blend(arguments, chunk, chunks):
    """With a shared weight, `shared` is what that multiplies and `gate` what the gate's does."""
    act = load_i64(arguments, 0)
    ids = load_i64(arguments, 1)
    weight = load_i64(arguments, 2)
    weights = load_i64(arguments, 3)
    shared = load_i64(arguments, 4)
    gate = load_i64(arguments, 5)
    y = load_i64(arguments, 6)
    rows = load_i64(arguments, 7)
    count = load_i64(arguments, 8)
    experts = load_i64(arguments, 9)
    n = load_i64(arguments, 10)
    k = load_i64(arguments, 11)
    shared_weight = load_i64(arguments, 12)
    shared_k = load_i64(arguments, 13)
    gate_weight = load_i64(arguments, 14)
    gate_k = load_i64(arguments, 15)
    gates = stack_f32(BLOCK)
    low = chunk_start(chunk, chunks, n)
    high = chunk_start(chunk + 1, chunks, n)
    whole = low + (high - low) // TILE * TILE
    for start in range(0, rows, BLOCK):
        stop = min(start + BLOCK, rows)
        for row in range(start, stop):
            if gate_weight != 0:
                logit = round_bf16(dot(gate_weight, gate + 2 * row * gate_k, gate_k))
            else:
                logit = load1(gate, row)
            store_f32(gates, row - start, sigmoid(logit))
        column = low
        while column < high:
            size = TILE if column < whole else 1
            for row in range(start, stop):
                a = (PLUS_ZERO, PLUS_ZERO, PLUS_ZERO, PLUS_ZERO)
                for choice in range(row * count, (row + 1) * count):
                    expert = load_i32(ids, choice)
                    t = (NAN, NAN, NAN, NAN)
                    if 0 <= expert < experts:
                        w = weight + 2 * expert * n * k
                        t = _products(w, act + 2 * choice * k, k, column, size)
                    a = _add_scaled(load_f32(weights, choice), t, a)
                open_ = load_f32(gates, row - start)
                if shared_weight != 0:
                    t = _products(
                        shared_weight, shared + 2 * row * shared_k, shared_k, column, size
                    )
                    a = _add_scaled(open_, t, a)
                    for i in range(size):
                        store1(y, row * n + column + i, a[i])
                else:
                    for i in range(size):
                        one = fma(open_, load1(shared, row * n + column + i), a[i])
                        store1(y, row * n + column + i, one)
            column += size


def down_blend(
    *,
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
    """`expert_down`, rounded to bf16, then `blend`: x [n * top_k, k], weight [experts, dim, k]."""
    tokens, dim = matrix("y", y)
    last = (
        bf16("shared", shared, (tokens, dim)),
        bf16("shared_gate", shared_gate, (tokens, 1)),
        (0, 0, 0, 0),
    )
    read = {"shared": shared, "shared_gate": shared_gate}
    return _bind_down(x, ids, weight, weights, y, last, read)


def shared_down_blend(
    *,
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    shared_x: torch.Tensor,
    shared_weight: torch.Tensor,
    gate_x: torch.Tensor,
    gate_weight: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
    """`down_blend` with the shared expert's down and gate linears, rounded to bf16 each.

    shared_x: bf16 [n, inter], shared_weight: [dim, inter]; gate_x: [n, hidden], gate_weight: [1,
    hidden].
    """
    tokens, dim = matrix("y", y)
    inter, hidden = matrix("shared_x", shared_x)[1], matrix("gate_x", gate_x)[1]
    own = (
        bf16("shared_weight", shared_weight, (dim, inter)),
        inter,
        bf16("gate_weight", gate_weight, (1, hidden)),
        hidden,
    )
    last = (
        bf16("shared_x", shared_x, (tokens, inter)),
        bf16("gate_x", gate_x, (tokens, hidden)),
        own,
    )
    read = {"shared_x": shared_x, "shared_weight": shared_weight}
    read |= {"gate_x": gate_x, "gate_weight": gate_weight}
    return _bind_down(x, ids, weight, weights, y, last, read)


def _bind_down(
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    y: torch.Tensor,
    last: tuple[int, int, tuple[int, ...]],
    others: dict[str, torch.Tensor],
) -> Launch:
    tokens, count = matrix("ids", ids)
    n, k = matrix("y", y)[1], matrix("x", x)[1]
    experts = expert_count(weight, n, k)
    read = {"x": x, "ids": ids, "weight": weight, "weights": weights, **others}
    disjoint({"y": y}, read)
    shared, gate, own = last
    arguments = (
        bf16("x", x, (tokens * count, k)),
        i32("ids", ids, (tokens, count)),
        bf16("weight", weight, tuple(weight.shape)),
        f32("weights", weights, (tokens, count)),
        shared,
        gate,
        bf16("y", y, (tokens, n)),
        tokens,
        count,
        experts,
        n,
        k,
        *own,
    )
    data = 2 * min(tokens * count, experts) * n * k
    return bind(_down_blend, arguments, (*read.values(), y), data)
