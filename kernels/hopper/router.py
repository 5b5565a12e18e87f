"""The choice of experts: softmax over all, the greatest few, scaled so that they sum to one.

Numerics: logits are bf16; e^(logit - greatest) in float32, summed over one thread an expert
(sums.py); each over the sum is its score. The greatest scores are chosen, the lower id of a tie
first, a NaN never before a number; the sum of their scores, in that order, divides each.

Behind the router in one launch: a program takes a tile of a row's logits, the chain of dot.py
rounded to bf16, and the last of a row's tiles to arrive chooses. Every row reads the whole router:
what that costs more rows than a few, the launch saves no more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .dot import product, tile_columns, tile_rows
from .jit import device, kernel
from .launch import bind
from .overlap import ask, enter
from .scalar import exp
from .sums import LEAST_LANES, power_of_two, warps_of
from .workspace import COUNTERS, counters, scratch

__all__ = ["router_top_k", "top_k"]

MAX_EXPERTS = 1024
ROWS, OUTPUTS = 16, 16
"""A tile's, of which one row counts: the programs of a row are many then, its choice is one's."""
STEPS = (512, 256, 128)
STAGES = 3
ID_BITS = tl.constexpr(32)
LAST_ID = tl.constexpr(0x7FFFFFFF)


@device
def _choose(logits, weights, ids, experts, count, E: tl.constexpr, C: tl.constexpr):
    """One row, by a kernel of one thread an expert: what is summed has one layout then."""
    expert, place = tl.arange(0, E), tl.arange(0, C)
    real = expert < experts
    value = tl.load(logits + expert, mask=real, other=float("-inf"), cache_modifier=".cg")
    value = value.to(tl.float32)
    top = tl.max(tl.where(value == value, value, float("-inf")))
    e = tl.where(real, exp(value - top), 0.0)
    scores = tl.div_rn(e, tl.broadcast_to(tl.sum(e), (E,)))
    # A score is at least 0, so its bits are in its order; NaN is below them, what is taken lowest.
    order = tl.where(scores == scores, scores.to(tl.int32, bitcast=True) + 1, 0).to(tl.int64)
    key = tl.where(real, (order << ID_BITS) | (LAST_ID - expert), -1)
    chosen = tl.zeros((C,), tl.float32)
    total = 0.0
    for choice in range(count):
        best = tl.max(key)
        found = LAST_ID - (best & LAST_ID)
        bits = (best >> ID_BITS).to(tl.int32)
        score = tl.where(bits > 0, (bits - 1).to(tl.float32, bitcast=True), float("nan"))
        tl.store(ids + choice, found.to(tl.int32))
        chosen = tl.where(place == choice, score, chosen)
        total = total + score
        key = tl.where(expert == found, -1, key)
    value = tl.div_rn(chosen, tl.broadcast_to(total, (C,)))
    tl.store(weights + place, value, mask=place < count)


@kernel
def _top_k(logits, weights, ids, experts, count, E: tl.constexpr, C: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    at = row * count
    _choose(logits + row * experts, weights + at, ids + at, experts, count, E, C)


@kernel
def _router_top_k(
    x, w, logits, weights, ids, arrived, experts, k, count, E: tl.constexpr, C: tl.constexpr,
    R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """logits: scratch memory, bf16 [rows, experts]."""
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tile * N
    ask(w + first.to(tl.int64) * k, tl.minimum(N, experts - first) * k * 2, E)
    enter()
    total = product(x + row * k, w, 0, first, 1, experts, k, R, N, K, EVEN, False)
    r, c = tile_rows(0, R, False), tile_columns(first, N, False)
    own = logits + row * experts
    tl.store(own + c + r * 0, total.to(tl.bfloat16), mask=(r < 1) & (c < experts))
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu") == tl.num_programs(1) - 1:
        tl.store(arrived + row, 0)
        at = row * count
        _choose(own, weights + at, ids + at, experts, count, E, C)


def top_k(*, logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, count: int) -> object:
    """The `count` experts of each row and their weights, which sum to one, greatest first.

    logits: bf16 [rows, experts]; weights: f32, ids: i32, [rows, count].
    """
    rows, experts = matrix("logits", logits)
    lanes = _lanes(experts, count)
    disjoint({"weights": weights, "ids": ids}, {"logits": logits})
    arguments = (
        bf16("logits", logits, (rows, experts)),
        f32("weights", weights, (rows, count)),
        i32("ids", ids, (rows, count)),
        experts,
        count,
        lanes,
        power_of_two(count),
    )
    return bind(_top_k, (rows,), arguments, warps_of(lanes))


def router_top_k(
    *, x: torch.Tensor, weight: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, count: int
) -> object:
    """`linear` to logits, rounded to bf16, then `top_k`: x [rows, k], weight [experts, k]; bf16."""
    rows, k = matrix("x", x)
    experts = matrix("weight", weight)[0]
    lanes = _lanes(experts, count)
    if rows > COUNTERS:
        raise ValueError(f"{rows} rows: this kernel counts the tiles of at most {COUNTERS}")
    disjoint({"weights": weights, "ids": ids}, {"x": x, "weight": weight})
    floats = triton.cdiv(rows * experts, 2)
    step = next((step for step in STEPS if k % step == 0), STEPS[-1])
    arguments = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (experts, k)),
        scratch(floats)[:floats].view(torch.bfloat16),
        f32("weights", weights, (rows, count)),
        i32("ids", ids, (rows, count)),
        counters(),
        experts,
        k,
        count,
        lanes,
        power_of_two(count),
        ROWS,
        OUTPUTS,
        step,
        k % step == 0,
    )
    grid = (rows, triton.cdiv(experts, OUTPUTS))
    return bind(_router_top_k, grid, arguments, warps_of(lanes), STAGES)


def _lanes(experts: int, count: int) -> int:
    """Threads of a choice: one an expert.

    Raises:
        ValueError: there are too many experts, or too few to choose `count` of.
    """
    if experts > MAX_EXPERTS:
        raise ValueError(f"{experts} experts: this kernel holds at most {MAX_EXPERTS}")
    if not 0 < count <= experts:
        raise ValueError(f"count is {count}: it must be from 1 to the {experts} experts")
    return power_of_two(experts, LEAST_LANES)
