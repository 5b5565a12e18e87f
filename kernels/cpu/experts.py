"""Routed experts: each chosen row through its own expert's matrices.

Numerics: the dot of dot.py, one rounding to bf16; SiLU takes the rounded gate and up. Row r of
rows * top_k is choice r % top_k of token r / top_k. An expert's rows pass together over each tile
of its weights; which rows share an expert changes no bits.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, i32, matrix
from .dot import TILE, dot, dot_1x4
from .jit import device, kernel
from .launch import Launch, bind
from .linear import chunk_start
from .memory import load_i32, load_i64, stack_f32, store1, store_i32, store_nan
from .scalar import silu_mul1
from .simd import round_bf16

__all__ = ["expert_down", "expert_gate_up", "gate_up_silu"]

LISTED = 64
"""Rows that pass together over an expert's tiles."""


@device
def _tile(x, w, y, k, column, size):
    """Outputs column.. of one row, four or one of them."""
    if size == TILE:
        t = dot_1x4(w + 2 * column * k, x, k)
        for i in range(TILE):
            store1(y, column + i, t[i])
    else:
        store1(y, column, dot(w + 2 * column * k, x, k))


@device
def _activated_tile(x, gate, up, y, k, column, size):
    """The same of silu of the rounded gate's dot times the rounded up's."""
    if size == TILE:
        g = dot_1x4(gate + 2 * column * k, x, k)
        u = dot_1x4(up + 2 * column * k, x, k)
        for i in range(TILE):
            store1(y, column + i, silu_mul1(round_bf16(g[i]), round_bf16(u[i])))
    else:
        one = round_bf16(dot(gate + 2 * column * k, x, k))
        other = round_bf16(dot(up + 2 * column * k, x, k))
        store1(y, column, silu_mul1(one, other))


@device
def _through_expert(x, chosen, count, shared, w, y, n, k, low, high, silu):
    """The rows listed in `chosen`, tile by tile, so that a tile is read once from memory."""
    whole = low + (high - low) // TILE * TILE
    column = low
    while column < high:
        size = TILE if column < whole else 1
        for i in range(count):
            pair = load_i32(chosen, i)
            row = x + 2 * (pair // shared) * k
            if silu != 0:
                _activated_tile(row, w, w + 2 * n * k, y + 2 * pair * n, k, column, size)
            else:
                _tile(row, w, y + 2 * pair * n, k, column, size)
        column += size


@device
def _rows_without_expert(ids, pairs, experts, y, n, low, high):
    for pair in range(pairs):
        expert = load_i32(ids, pair)
        if expert < 0 or expert >= experts:
            for column in range(low, high):
                store_nan(y, pair * n + column)


@kernel
def _experts(arguments, chunk, chunks):
    """Row r of y is that of x's row r / shared through its expert; activated where `silu`."""
    x = load_i64(arguments, 0)
    ids = load_i64(arguments, 1)
    weight = load_i64(arguments, 2)
    y = load_i64(arguments, 3)
    pairs = load_i64(arguments, 4)
    shared = load_i64(arguments, 5)
    experts = load_i64(arguments, 6)
    n = load_i64(arguments, 7)
    k = load_i64(arguments, 8)
    silu = load_i64(arguments, 9)
    low = chunk_start(chunk, chunks, n)
    high = chunk_start(chunk + 1, chunks, n)
    _rows_without_expert(ids, pairs, experts, y, n, low, high)
    chosen = stack_f32(LISTED)  # as many 32-bit integers
    for expert in range(experts):
        w = weight + 2 * (1 + silu) * expert * n * k
        count = 0
        for pair in range(pairs):
            if load_i32(ids, pair) == expert:
                store_i32(chosen, count, pair)
                count += 1
            if count == LISTED:
                _through_expert(x, chosen, count, shared, w, y, n, k, low, high, silu)
                count = 0
        if count > 0:
            _through_expert(x, chosen, count, shared, w, y, n, k, low, high, silu)


def expert_gate_up(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> Launch:
    """gate||up of the chosen experts: x [rows, k], ids i32 [rows, top_k], y [rows * top_k, n].

    weight: bf16 [experts, n, k], or the same as [experts * n, k]. A row whose id is no expert's
    gives NaN.
    """
    return _bind(x, ids, weight, y, ids.shape[-1], 0)


def expert_down(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> Launch:
    """As `expert_gate_up`, but x has a row for each choice: [rows * top_k, k]."""
    return _bind(x, ids, weight, y, 1, 0)


def gate_up_silu(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> Launch:
    """`expert_gate_up`, rounded to bf16, then `silu_mul`: weight [experts, 2 inter, k].

    y: bf16 [rows * top_k, inter].
    """
    return _bind(x, ids, weight, y, ids.shape[-1], 1)


def _bind(
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    shared: int,
    silu: int,
) -> Launch:
    rows, top_k = matrix("ids", ids)
    n, k = matrix("y", y)[1], matrix("x", x)[1]
    pairs = rows * top_k
    experts = expert_count(weight, (1 + silu) * n, k)
    disjoint({"y": y}, {"x": x, "ids": ids, "weight": weight})
    arguments = (
        bf16("x", x, (pairs // shared, k)),
        i32("ids", ids, (rows, top_k)),
        bf16("weight", weight, tuple(weight.shape)),
        bf16("y", y, (pairs, n)),
        pairs,
        shared,
        experts,
        n,
        k,
        silu,
    )
    return bind(_experts, arguments, (x, ids, weight, y), 2 * min(pairs, experts) * n * k)


def expert_count(weight: torch.Tensor, n: int, k: int) -> int:
    """How many matrices [n, k] the weight holds, one after another.

    Raises:
        ValueError: it does not hold whole ones.
    """
    shape = tuple(weight.shape)
    if shape[-1] != k or (shape[1] != n if weight.dim() == 3 else shape[0] % n):
        raise ValueError(f"weight has shape {shape}: it must be [experts, {n}, {k}]")
    return weight.numel() // (n * k)
