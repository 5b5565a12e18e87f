"""The experts' last products and their weighted sum in one launch, the shared expert's too.

Numerics: those of blend.py, of products rounded to bf16 as they would be stored.

While tokens and tiles can be counted and their rows kept, each choice of a token is a program's,
and so are the shared expert's row and its gate; the last of them to arrive adds them up. Beyond,
one program takes a token's choices one after the other. Of many tokens, those that share an expert
share the reading of its matrix (grouped.py): the launches one by one then, with what they hand on
in scratch memory. The same operations either way.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

from .blend import blend
from .check import bf16, disjoint, f32, i32, matrix
from .dot import product, tile_columns, tile_rows
from .experts import expert_count, expert_down
from .grouped import GROUPED_FROM, Lists
from .jit import device, kernel
from .launch import bind, in_turn
from .linear import linear
from .overlap import release, wait
from .scalar import round_bf16, sigmoid
from .tiles import Tile
from .workspace import COUNTERS, counters, has_room, scratch

__all__ = ["down_blend", "shared_down_blend"]

TILE = Tile(16, 32, 128, False, 4, 3)
PART_TILES = (Tile(16, 32, 256, False, 4, 3), Tile(16, 64, 128, False, 4, 3))
"""The first where its step divides all that is summed over."""
ALIGNED = 64
"""Floats: what is handed on starts at a multiple."""


@device
def _chosen(
    x, ids, weight, weights, row, column, experts, n, k, COUNT: tl.constexpr, R: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The weighted sum of a token's choices, float32 [R, N] of which row 0 counts."""
    total = tl.zeros((R, N), tl.float32)
    for choice in range(COUNT):
        at = row * COUNT + choice
        expert = tl.load(ids + at).to(tl.int64)
        real = (expert >= 0) & (expert < experts)
        w = weight + tl.where(real, expert, 0) * n * k
        value = round_bf16(product(x + at * k, w, 0, column, 1, n, k, R, N, K, EVEN, False))
        value = tl.where(real, value, float("nan"))
        total = tl.fma(tl.broadcast_to(tl.load(weights + at), (R, N)), value, total)
    return total


@kernel
def _down_blend(
    x, ids, weight, weights, shared, gate, y, experts, n, k, COUNT: tl.constexpr, R: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    wait()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * N
    total = _chosen(x, ids, weight, weights, row, column, experts, n, k, COUNT, R, N, K, EVEN)
    r, c = tile_rows(0, R, False), tile_columns(column, N, False)
    here = (r < 1) & (c < n)
    at = row * n + c + r * 0
    opened = sigmoid(tl.load(gate + row).to(tl.float32))
    value = tl.load(shared + at, mask=here, other=0.0).to(tl.float32)
    total = tl.fma(tl.broadcast_to(opened, (R, N)), value, total)
    tl.store(y + at, total.to(tl.bfloat16), mask=here)


@kernel
def _shared_down_blend(
    x, ids, weight, weights, shared_x, shared_weight, gate_x, gate_weight, y, experts, n, k,
    shared_k, gate_k, COUNT: tl.constexpr, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, GATE_EVEN: tl.constexpr,
):  # fmt: skip
    wait()
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * N
    total = _chosen(x, ids, weight, weights, row, column, experts, n, k, COUNT, R, N, K, EVEN)
    # A matrix of one output: every column of the tile is that output.
    logit = product(
        gate_x + row * gate_k, gate_weight, 0, 0, 1, 1, gate_k, R, N, K, GATE_EVEN, False
    )
    value = product(
        shared_x + row * shared_k, shared_weight, 0, column, 1, n, shared_k, R, N, K, SHARED_EVEN,
        False,
    )  # fmt: skip
    total = tl.fma(sigmoid(round_bf16(logit)), round_bf16(value), total)
    r, c = tile_rows(0, R, False), tile_columns(column, N, False)
    tl.store(y + row * n + c + r * 0, total.to(tl.bfloat16), mask=(r < 1) & (c < n))


@device
def _own_part(
    x, ids, weight, shared_x, shared_weight, gate_x, gate_weight, row, column, part, experts, n, k,
    shared_k, gate_k, COUNT: tl.constexpr, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, GATE_EVEN: tl.constexpr,
):  # fmt: skip
    """A choice's row, or the shared expert's, or its gate's logit in every column; rounded."""
    expert = tl.load(ids + row * COUNT + part, mask=part < COUNT, other=0).to(tl.int64)
    real = (expert >= 0) & (expert < experts)
    # One product for all three, so that it is compiled once.
    left = x + (row * COUNT + part) * k
    right = weight + tl.where(real, expert, 0) * n * k
    inner, outputs, first = k, n, column
    if part == COUNT:
        left, right, inner = shared_x + row * shared_k, shared_weight, shared_k
    if part > COUNT:
        left, right, inner = gate_x + row * gate_k, gate_weight, gate_k
        outputs, first = 1, 0
    ALL_EVEN: tl.constexpr = EVEN and SHARED_EVEN and GATE_EVEN
    total = product(left, right, 0, first, 1, outputs, inner, R, N, K, ALL_EVEN, False)
    return tl.where(real, round_bf16(total), float("nan"))


@kernel
def _parted_down_blend(
    x, ids, weight, weights, shared_x, shared_weight, gate_x, gate_weight, y, parts, arrived,
    experts, n, k, shared_k, gate_k, COUNT: tl.constexpr, R: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, EVEN: tl.constexpr, SHARED_EVEN: tl.constexpr, GATE_EVEN: tl.constexpr,
):  # fmt: skip
    """parts: f32 [token, COUNT + 2, n], of which the last row is the gate's logit."""
    release()
    wait()
    part, tile, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    value = _own_part(
        x, ids, weight, shared_x, shared_weight, gate_x, gate_weight, row, tile * N, part, experts,
        n, k, shared_k, gate_k, COUNT, R, N, K, EVEN, SHARED_EVEN, GATE_EVEN,
    )  # fmt: skip
    r, c = tile_rows(0, R, False), tile_columns(tile * N, N, False)
    base = parts + row * (COUNT + 2) * n
    tl.store(base + part * n + c + r * 0, value, mask=(r < 1) & (c < n))
    tl.debug_barrier()
    place = row * tl.num_programs(1) + tile
    if tl.atomic_add(arrived + place, 1, sem="acq_rel", scope="gpu") == COUNT + 1:
        tl.store(arrived + place, 0)
        i = tile * N + tl.arange(0, N)
        here = i < n
        total = tl.zeros((N,), tl.float32)
        for choice in tl.static_range(COUNT):
            chosen = tl.load(base + choice * n + i, mask=here, other=0.0, cache_modifier=".cg")
            scale = tl.load(weights + row * COUNT + choice)
            total = tl.fma(tl.broadcast_to(scale, (N,)), chosen, total)
        shared = tl.load(base + COUNT * n + i, mask=here, other=0.0, cache_modifier=".cg")
        logit = tl.load(base + (COUNT + 1) * n + i, mask=here, other=0.0, cache_modifier=".cg")
        total = tl.fma(sigmoid(logit), shared, total)
        tl.store(y + row * n + i, total.to(tl.bfloat16), mask=here)


def down_blend(
    *,
    x: torch.Tensor,
    ids: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    shared: torch.Tensor,
    shared_gate: torch.Tensor,
    y: torch.Tensor,
) -> object:
    """`expert_down`, rounded to bf16, then `blend`: x [n * top_k, k], weight [experts, dim, k]."""
    tokens, count, n, k, experts, tile = _sizes(x, ids, weight, y)
    read = {"x": x, "ids": ids, "weight": weight, "weights": weights, "shared": shared}
    disjoint({"y": y}, {**read, "shared_gate": shared_gate})
    tensors = (
        bf16("x", x, (tokens * count, k)),
        i32("ids", ids, (tokens, count)),
        bf16("weight", weight, tuple(weight.shape)),
        f32("weights", weights, (tokens, count)),
        bf16("shared", shared, (tokens, n)),
        bf16("shared_gate", shared_gate, (tokens, 1)),
        bf16("y", y, (tokens, n)),
    )
    launches: list[object] = []
    for part, (down,) in _parts(tokens, count, n, k, experts):
        choices = slice(count * part.start, count * part.stop)
        opened = {"shared": shared[part], "shared_gate": shared_gate[part]}
        launches += (
            expert_down(x=x[choices], ids=ids[part], weight=weight, y=down),
            blend(rows=down, weights=weights[part], **opened, y=y[part]),
        )
    if launches:
        return in_turn(*launches)
    arguments = (
        *tensors,
        experts,
        n,
        k,
        count,
        *tile.constants,
        k % tile.k == 0,
    )
    grid = (tokens, triton.cdiv(n, tile.n))
    return bind(_down_blend, grid, arguments, tile.warps, tile.stages)


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
) -> object:
    """`down_blend` with the shared expert's down and gate linears, rounded to bf16 each.

    shared_x: bf16 [n, inter], shared_weight: [dim, inter]; gate_x: [n, hidden], gate_weight: [1,
    hidden].
    """
    tokens, count, n, k, experts, tile = _sizes(x, ids, weight, y)
    inter, hidden = matrix("shared_x", shared_x)[1], matrix("gate_x", gate_x)[1]
    part_tile = _part_tile(k, inter, hidden)
    counted = tokens * triton.cdiv(n, part_tile.n) <= COUNTERS
    parted = counted and has_room(tokens * (count + 2) * n)
    tile = part_tile if parted else tile
    read = {"x": x, "ids": ids, "weight": weight, "weights": weights, "shared_x": shared_x}
    disjoint({"y": y}, {**read, "gate_x": gate_x, "shared_weight": shared_weight})
    tensors = (
        bf16("x", x, (tokens * count, k)),
        i32("ids", ids, (tokens, count)),
        bf16("weight", weight, tuple(weight.shape)),
        f32("weights", weights, (tokens, count)),
        bf16("shared_x", shared_x, (tokens, inter)),
        bf16("shared_weight", shared_weight, (n, inter)),
        bf16("gate_x", gate_x, (tokens, hidden)),
        bf16("gate_weight", gate_weight, (1, hidden)),
        bf16("y", y, (tokens, n)),
    )
    launches: list[object] = []
    for part, (down, shared, gate) in _parts(tokens, count, n, k, experts, n, 1):
        choices = slice(count * part.start, count * part.stop)
        launches += (
            expert_down(x=x[choices], ids=ids[part], weight=weight, y=down),
            linear(x=shared_x[part], weight=shared_weight, bias=None, y=shared),
            linear(x=gate_x[part], weight=gate_weight, bias=None, y=gate),
            blend(rows=down, weights=weights[part], shared=shared, shared_gate=gate, y=y[part]),
        )
    if launches:
        return in_turn(*launches)
    sizes = (
        experts,
        n,
        k,
        inter,
        hidden,
        count,
        *tile.constants,
        k % tile.k == 0,
        inter % tile.k == 0,
        hidden % tile.k == 0,
    )
    tiles = triton.cdiv(n, tile.n)
    if parted:
        own = (scratch(tokens * (count + 2) * n), counters())
        grid = (count + 2, tiles, tokens)
        return bind(_parted_down_blend, grid, (*tensors, *own, *sizes), tile.warps, tile.stages)
    grid = (tokens, tiles)
    return bind(_shared_down_blend, grid, (*tensors, *sizes), tile.warps, tile.stages)


def _parts(
    tokens: int, count: int, n: int, k: int, experts: int, *widths: int
) -> Iterator[tuple[slice, tuple[torch.Tensor, ...]]]:
    """As many tokens at a time as there is room for; none at all where these are few.

    With each part, scratch memory for what its launches hand on, behind the experts' lists: bf16
    [tokens * count, n], then [tokens, width] each.
    """

    def needed(some: int) -> tuple[int, list[tuple[int, int]], list[int]]:
        shapes = [(some * count, n), *((some, width) for width in widths)]
        sizes = [_aligned(-(-rows * columns // 2)) for rows, columns in shapes]
        return _aligned(Lists.of(some * count, experts, n, k).floats), shapes, sizes

    most = tokens
    while most >= GROUPED_FROM:
        first, _, sizes = needed(most)
        if has_room(first + sum(sizes)):
            break
        most = -(-most // 2)
    if most < GROUPED_FROM:
        return
    for start in range(0, tokens, most):
        stop = min(start + most, tokens)
        first, shapes, sizes = needed(stop - start)
        places = scratch(first + sum(sizes))[first : first + sum(sizes)].split(sizes)
        yield (
            slice(start, stop),
            tuple(
                place.view(torch.bfloat16)[: rows * columns].view(rows, columns)
                for place, (rows, columns) in zip(places, shapes, strict=True)
            ),
        )


def _aligned(floats: int) -> int:
    return -(-floats // ALIGNED) * ALIGNED


def _part_tile(*lengths: int) -> Tile:
    """The tile of programs that go through one of these lengths each."""
    whole, other = PART_TILES
    return whole if all(length % whole.k == 0 for length in lengths) else other


def _sizes(
    x: torch.Tensor, ids: torch.Tensor, weight: torch.Tensor, y: torch.Tensor
) -> tuple[int, int, int, int, int, Tile]:
    """Tokens, choices, outputs, k, experts, and a tile with rows along its own axis."""
    (tokens, count), n, k = matrix("ids", ids), matrix("y", y)[1], matrix("x", x)[1]
    return tokens, count, n, k, expert_count(weight, n, k), TILE
