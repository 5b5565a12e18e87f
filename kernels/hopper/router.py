"""The choice of experts: softmax over all, the greatest few, scaled so that they sum to one.

Numerics: logits are bf16; e^(logit - greatest) in float32, summed over one thread an expert
(sums.py); each over the sum is its score. The greatest scores are chosen, the lower id of a tie
first, a NaN never before a number; the sum of their scores, in that order, divides each.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .jit import kernel
from .launch import bind
from .overlap import enter
from .scalar import exp
from .sums import LEAST_LANES, power_of_two, warps_of

__all__ = ["top_k"]

MAX_EXPERTS = 1024
ID_BITS = tl.constexpr(32)
LAST_ID = tl.constexpr(0x7FFFFFFF)


@kernel
def _top_k(logits, weights, ids, experts, count, E: tl.constexpr, C: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    expert, place = tl.arange(0, E), tl.arange(0, C)
    real = expert < experts
    value = tl.load(logits + row * experts + expert, mask=real, other=float("-inf")).to(tl.float32)
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
        tl.store(ids + row * count + choice, found.to(tl.int32))
        chosen = tl.where(place == choice, score, chosen)
        total = total + score
        key = tl.where(expert == found, -1, key)
    value = tl.div_rn(chosen, tl.broadcast_to(total, (C,)))
    tl.store(weights + row * count + place, value, mask=place < count)


def top_k(*, logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, count: int) -> object:
    """The `count` experts of each row and their weights, which sum to one, greatest first.

    logits: bf16 [rows, experts]; weights: f32, ids: i32, [rows, count].
    """
    rows, experts = matrix("logits", logits)
    if experts > MAX_EXPERTS:
        raise ValueError(f"{experts} experts: this kernel holds at most {MAX_EXPERTS}")
    if not 0 < count <= experts:
        raise ValueError(f"count is {count}: it must be from 1 to the {experts} experts")
    disjoint({"weights": weights, "ids": ids}, {"logits": logits})
    arguments = (
        bf16("logits", logits, (rows, experts)),
        f32("weights", weights, (rows, count)),
        i32("ids", ids, (rows, count)),
        experts,
        count,
        power_of_two(experts, LEAST_LANES),
        power_of_two(count),
    )
    return bind(_top_k, (rows,), arguments, warps_of(power_of_two(experts, LEAST_LANES)))
