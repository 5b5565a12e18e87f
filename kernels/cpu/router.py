"""The choice of experts: softmax over all, the greatest few, scaled so that they sum to one.

Numerics: logits are bf16; e^(logit - greatest) in float32, summed by sixteen lanes and the fixed
tree, the last experts % 16 one by one; each over the sum is its score. The greatest scores are
chosen, the lower id of a tie first, a NaN never before a number; the sum of their scores, in that
order, divides each. A row's order depends on the number of experts only.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, f32, i32, matrix
from .head import row_max
from .jit import device, kernel
from .launch import Launch, bind
from .linear import outputs
from .memory import (
    load1,
    load16,
    load_f32,
    load_f32x16,
    load_i64,
    put_f32,
    stack_f32,
    store_f32,
    store_f32x16,
    store_i32,
)
from .scalar import exp
from .simd import LANES, add, div, hsum, splat, sub, zero

__all__ = ["router_top_k", "top_k"]

MAX_EXPERTS = 1024
LOGIT_FLOATS = MAX_EXPERTS // 2  # that many bf16
PLUS_ZERO = np.float32(0.0)
TAKEN = np.float32(-1.0)
"""What no score is: they are at least 0, or NaN."""


@device
def softmax_scores(logits, scores, experts):
    """float32 scores of one row of bf16 logits."""
    top = row_max(logits, experts)
    total = zero()
    whole = experts - experts % LANES
    for i in range(0, whole, LANES):
        e = exp(sub(load16(logits, i), splat(top)))
        store_f32x16(scores, i, e)
        total = add(total, e)
    summed = hsum(total)
    for i in range(whole, experts):
        e1 = exp(sub(load1(logits, i), top))
        store_f32(scores, i, e1)
        summed = add(summed, e1)
    for i in range(0, whole, LANES):
        store_f32x16(scores, i, div(load_f32x16(scores, i), splat(summed)))
    for i in range(whole, experts):
        store_f32(scores, i, div(load_f32(scores, i), summed))


@device
def take_best(scores, experts):
    """The lowest id of the greatest score that is left; of NaN alone, the lowest id left."""
    best = -1
    top = TAKEN
    for expert in range(experts):
        score = load_f32(scores, expert)
        if score > top:
            best = expert
            top = score
    if best < 0:
        best = 0
        while load_f32(scores, best) == TAKEN:
            best += 1
    return best


@device
def choose(logits, scores, weights, ids, experts, count):
    """One row: `count` weights and ids."""
    softmax_scores(logits, scores, experts)
    total = PLUS_ZERO
    for choice in range(count):
        expert = take_best(scores, experts)
        score = load_f32(scores, expert)
        store_i32(ids, choice, expert)
        store_f32(weights, choice, score)
        total = add(total, score)
        store_f32(scores, expert, TAKEN)
    for choice in range(count):
        put_f32(weights, choice, div(load_f32(weights, choice), total))


@kernel
def _top_k(arguments, chunk, chunks):
    logits = load_i64(arguments, 0)
    weights = load_i64(arguments, 1)
    ids = load_i64(arguments, 2)
    rows = load_i64(arguments, 3)
    experts = load_i64(arguments, 4)
    count = load_i64(arguments, 5)
    scores = stack_f32(MAX_EXPERTS)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 4 * row * count
        choose(logits + 2 * row * experts, scores, weights + at, ids + at, experts, count)


@kernel
def _router_top_k(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    weight = load_i64(arguments, 1)
    weights = load_i64(arguments, 2)
    ids = load_i64(arguments, 3)
    rows = load_i64(arguments, 4)
    experts = load_i64(arguments, 5)
    count = load_i64(arguments, 6)
    k = load_i64(arguments, 7)
    scores = stack_f32(MAX_EXPERTS)
    logits = stack_f32(LOGIT_FLOATS)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 4 * row * count
        outputs(x + 2 * row * k, 1, weight, 0, 0, logits, experts, k, 0, experts)
        choose(logits, scores, weights + at, ids + at, experts, count)


def top_k(*, logits: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, count: int) -> Launch:
    """The `count` experts of each row and their weights, which sum to one, greatest first.

    logits: bf16 [rows, experts]; weights: f32, ids: i32, [rows, count].
    """
    rows, experts = matrix("logits", logits)
    _check_count(count, experts)
    disjoint({"weights": weights, "ids": ids}, {"logits": logits})
    arguments = (
        bf16("logits", logits, (rows, experts)),
        f32("weights", weights, (rows, count)),
        i32("ids", ids, (rows, count)),
        rows,
        experts,
        count,
    )
    return bind(_top_k, arguments, (logits, weights, ids), 32 * rows * experts)


def router_top_k(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    count: int,
) -> Launch:
    """`linear` to logits, rounded to bf16, then `top_k`: x [rows, k], weight [experts, k]."""
    rows, k = matrix("x", x)
    experts = matrix("weight", weight)[0]
    _check_count(count, experts)
    disjoint({"weights": weights, "ids": ids}, {"x": x, "weight": weight})
    arguments = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (experts, k)),
        f32("weights", weights, (rows, count)),
        i32("ids", ids, (rows, count)),
        rows,
        experts,
        count,
        k,
    )
    return bind(_router_top_k, arguments, (x, weight, weights, ids), 2 * rows * experts * k)


def _check_count(count: int, experts: int) -> None:
    if experts > MAX_EXPERTS:
        raise ValueError(f"{experts} experts: this kernel holds at most {MAX_EXPERTS}")
    if not 0 < count <= experts:
        raise ValueError(f"count is {count}: it must be from 1 to the {experts} experts")
