"""Routed experts for many rows: an expert's rows share the reading of its matrices.

A first launch lists, expert by expert, which rows are its own, in tiles; a second one takes a tile
of rows through the products of dot.py. Tiles change no bits, so these are those of a row alone.

The host knows no counts: the grid is what the worst choice of experts needs, and a program without
a tile returns. Rows stand in the order of their numbers, so that a list is the same each time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from .dot import product_of, tile_columns, tile_rows
from .jit import device, kernel
from .launch import bind, in_turn
from .linear import two_products_of
from .overlap import enter, wait
from .scalar import round_bf16, silu_mul1
from .sums import power_of_two, warps_of
from .tiles import Tile, tile_for
from .workspace import has_room, scratch

__all__ = ["Lists", "Routed", "bind_groups", "pays"]

GROUPED_FROM = 16
"""Rows from which on some experts are chosen twice, in a model of a few hundred."""
BLOCK, THREADS = 1024, 128
SPARE = tl.constexpr(-1)


@dataclass(frozen=True, slots=True)
class Lists:
    """Tiles of rows, and how many there are at most."""

    tile: Tile
    tiles: int

    @classmethod
    def of(cls, pairs: int, experts: int, n: int, k: int, *, weights: int = 1) -> Lists:
        """Of so many rows through the experts' matrices [n, k], `weights` of them at once.

        The tile is for as many rows as an expert has if all have as many. Each expert, and what is
        none, may end with a tile that is not full.
        """
        tile = tile_for(pairs // experts, n, k, weights)
        return cls(tile, min(pairs, (pairs + (tile.r - 1) * (experts + 1)) // tile.r))

    @property
    def floats(self) -> int:
        """Scratch memory: of each tile its expert, and its rows."""
        return self.tiles * (1 + self.tile.r)


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows x through the matrices [n, k] of their experts; [2 n, k] where `silu`.

    x: bf16 [rows * top_k / shared, k]; ids: i32 [rows, top_k]; y: bf16 [rows * top_k, n].
    """

    x: torch.Tensor
    ids: torch.Tensor
    weight: torch.Tensor
    y: torch.Tensor
    experts: int
    shared: int
    """rows of y that read one row of x"""
    silu: bool

    @property
    def lists(self) -> Lists:
        """Which rows share a tile."""
        (pairs, n), k = self.y.shape, self.x.shape[1]
        return Lists.of(pairs, self.experts, n, k, weights=2 if self.silu else 1)


def pays(routed: Routed) -> bool:
    """Whether there are enough rows to share, and room for their lists."""
    return routed.ids.shape[0] >= GROUPED_FROM and has_room(routed.lists.floats)


@device
def _experts_at(ids, i, pairs, experts):
    """The experts of rows i; number `experts` for an id that is none."""
    expert = tl.load(ids + i, mask=i < pairs, other=0)
    return tl.where((expert >= 0) & (expert < experts), expert, experts)


@kernel
def _groups(
    ids, owners, members, pairs, experts, tiles, E: tl.constexpr, R: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """A program lists one expert's rows; the last one, those of none, and marks spare tiles.

    owners: i32 [tiles], a tile's expert or SPARE; members: i32 [tiles, R], its rows, then SPARE.
    """
    enter()
    own = tl.program_id(0)
    lane, some = tl.arange(0, BLOCK), tl.arange(0, R)
    counts = tl.zeros((E,), tl.int32)
    for start in range(0, pairs, BLOCK):
        i = start + lane
        counts += tl.histogram(_experts_at(ids, i, pairs, experts), E, mask=i < pairs)
    number = tl.arange(0, E)
    needed = (counts + R - 1) // R
    first = tl.sum(tl.where(number < own, needed, 0))
    count = tl.sum(tl.where(number == own, counts, 0))
    last = first + (count + R - 1) // R
    seen = 0
    for start in range(0, pairs, BLOCK):
        i = start + lane
        mine = (i < pairs) & (_experts_at(ids, i, pairs, experts) == own)
        place = seen + tl.cumsum(mine.to(tl.int32), 0) - 1
        tl.store(members + first * R + place, i, mask=mine)
        seen += tl.sum(mine.to(tl.int32))
    left = first * R + count + some
    tl.store(members + left, SPARE, mask=left < last * R)
    for tile in range(first, last, R):
        tl.store(owners + tile + some, own, mask=tile + some < last)
    if own == experts:
        for tile in range(last, tiles, R):
            tl.store(owners + tile + some, SPARE, mask=tile + some < tiles)


@kernel
def _grouped_experts(
    x, owners, members, weight, y, experts, n, k, SHARED: tl.constexpr, SILU: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """`_experts` of experts.py for a tile of rows that are all of one expert."""
    wait()
    tile, column = tl.program_id(0), tl.program_id(1) * N
    expert = tl.load(owners + tile, cache_modifier=".cg").to(tl.int64)
    if expert >= 0:
        r, c = tile_rows(0, R, SWAP), tile_columns(column, N, SWAP)
        pair = tl.load(members + tile * R + r, cache_modifier=".cg").to(tl.int64)
        held = pair >= 0
        pair = tl.where(held, pair, 0)
        here = held & (c < n)
        at = y + pair * n + c
        rows = x + pair // SHARED * k
        if expert >= experts:
            tl.store(at, float("nan"), mask=here)
        elif SILU:
            w = weight + expert * 2 * n * k
            gate, up = two_products_of(rows, held, w, column, n, k, R, N, K, EVEN, SWAP)
            value = silu_mul1(round_bf16(gate), round_bf16(up))
            tl.store(at, value.to(tl.bfloat16), mask=here)
        else:
            w = weight + expert * n * k
            total = product_of(rows, held, w, column, n, k, R, N, K, EVEN, SWAP)
            tl.store(at, total.to(tl.bfloat16), mask=here)


def bind_groups(routed: Routed) -> object:
    """Both launches, as one. What it is given has been checked."""
    pairs, n = routed.y.shape
    k, lists = routed.x.shape[1], routed.lists
    tile, tiles = lists.tile, lists.tiles
    listed = scratch(lists.floats)[: lists.floats].view(torch.int32)
    owners, members = listed[:tiles], listed[tiles:]
    groups = (
        routed.ids,
        owners,
        members,
        pairs,
        routed.experts,
        tiles,
        power_of_two(routed.experts + 1, THREADS),
        tile.r,
        min(BLOCK, power_of_two(pairs, THREADS)),
    )
    products = (
        routed.x,
        owners,
        members,
        routed.weight,
        routed.y,
        routed.experts,
        n,
        k,
        routed.shared,
        routed.silu,
        *tile.constants,
        k % tile.k == 0,
        tile.swap,
    )
    grid = (tiles, triton.cdiv(n, tile.n))
    return in_turn(
        bind(_groups, (routed.experts + 1,), groups, warps_of(THREADS)),
        bind(_grouped_experts, grid, products, tile.warps, tile.stages),
    )
