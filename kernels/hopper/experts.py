"""Routed experts: each chosen row through its own expert's matrices.

Numerics: the product of dot.py, one rounding to bf16; SiLU takes the rounded gate and up. Row r of
rows * top_k is choice r % top_k of token r / top_k. Of few tokens a program takes one of them; of
many (grouped.py), a tile of those that share an expert: tiles change no bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .dot import product, tile_columns, tile_rows
from .grouped import Routed, bind_groups, pays
from .jit import kernel
from .launch import bind
from .linear import two_products
from .overlap import wait
from .scalar import round_bf16, silu_mul1
from .tiles import tile_for

__all__ = ["expert_count", "expert_down", "expert_gate_up", "gate_up_silu"]


@kernel
def _experts(
    x, ids, weight, y, experts, n, k, SHARED: tl.constexpr, SILU: tl.constexpr, R: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """Row r of y is that of x's row r / SHARED through its expert; activated where SILU."""
    wait()
    pair, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * N
    r, c = tile_rows(0, R, SWAP), tile_columns(column, N, SWAP)
    here = (r < 1) & (c < n)
    at = y + pair * n + c + r * 0
    expert = tl.load(ids + pair).to(tl.int64)
    row = x + pair // SHARED * k
    if (expert < 0) | (expert >= experts):
        tl.store(at, float("nan"), mask=here)
    elif SILU:
        w = weight + expert * 2 * n * k
        gate, up = two_products(row, w, 0, column, 1, n, k, R, N, K, EVEN, SWAP)
        value = silu_mul1(round_bf16(gate), round_bf16(up))
        tl.store(at, value.to(tl.bfloat16), mask=here)
    else:
        w = weight + expert * n * k
        total = product(row, w, 0, column, 1, n, k, R, N, K, EVEN, SWAP)
        tl.store(at, total.to(tl.bfloat16), mask=here)


def expert_gate_up(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> object:
    """gate||up of the chosen experts: x [rows, k], ids i32 [rows, top_k], y [rows * top_k, n].

    weight: bf16 [experts, n, k], or the same as [experts * n, k]. A row whose id is no expert's
    gives NaN.
    """
    return _bind(x, ids, weight, y, ids.shape[-1], silu=False)


def expert_down(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> object:
    """As `expert_gate_up`, but x has a row for each choice: [rows * top_k, k]."""
    return _bind(x, ids, weight, y, 1, silu=False)


def gate_up_silu(
    *, x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> object:
    """`expert_gate_up`, rounded to bf16, then `silu_mul`: weight [experts, 2 inter, k].

    y: bf16 [rows * top_k, inter].
    """
    return _bind(x, ids, weight, y, ids.shape[-1], silu=True)


def _bind(
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    shared: int,
    *,
    silu: bool,
) -> object:
    rows, top_k = matrix("ids", ids)
    n, k = matrix("y", y)[1], matrix("x", x)[1]
    pairs = rows * top_k
    experts = expert_count(weight, (2 if silu else 1) * n, k)
    disjoint({"y": y}, {"x": x, "ids": ids, "weight": weight})
    tensors = (
        bf16("x", x, (pairs // shared, k)),
        i32("ids", ids, (rows, top_k)),
        bf16("weight", weight, tuple(weight.shape)),
        bf16("y", y, (pairs, n)),
    )
    routed = Routed(*tensors, experts, shared, silu)
    if pays(routed):
        return bind_groups(routed)
    tile = tile_for(1, n, k, weights=2 if silu else 1)
    arguments = (
        *tensors,
        experts,
        n,
        k,
        shared,
        silu,
        *tile.constants,
        k % tile.k == 0,
        tile.swap,
    )
    grid = (pairs, triton.cdiv(n, tile.n))
    return bind(_experts, grid, arguments, tile.warps, tile.stages)


def expert_count(weight: torch.Tensor, n: int, k: int) -> int:
    """How many matrices [n, k] the weight holds, one after another.

    Raises:
        ValueError: it does not hold whole ones.
    """
    shape = tuple(weight.shape)
    if shape[-1] != k or (shape[1] != n if weight.dim() == 3 else shape[0] % n):
        raise ValueError(f"weight has shape {shape}: it must be [experts, {n}, {k}]")
    return weight.numel() // (n * k)
