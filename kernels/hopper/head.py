"""Greedy choice of a token.

Each element becomes one integer: its order among the values above, its index, counted down, below.
The greatest integer is the greatest value's lowest index, whichever way the row is split.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import enter
from .workspace import COUNTERS, counters, scratch

__all__ = ["argmax"]

BLOCK, PARTS = 1024, 32
INDEX_BITS = tl.constexpr(32)
LAST_INDEX = tl.constexpr(0x7FFFFFFF)


@device
def _ordered(value):
    """int64 in the order of the floats, both zeros as one; 0 for NaN and -inf, which never win."""
    value = tl.where(value == 0.0, 0.0, value)
    bits = value.to(tl.int32, bitcast=True).to(tl.int64)
    order = tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits) + 0x80000000
    return tl.where((value == value) & (value > float("-inf")), order, 0)


@kernel
def _argmax(
    logits, tokens, keys, arrived, vocab, each, PARTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """A part of a row; the last part to arrive takes the greatest of all."""
    enter()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    stop = tl.minimum((part + 1) * each, vocab)
    best = tl.zeros((BLOCK,), tl.int64)
    for start in range(part * each, stop, BLOCK):
        i = start + lane
        value = tl.load(logits + row * vocab + i, mask=i < stop, other=float("-inf"))
        # Halved, the order leaves the sign free; a widened bf16 has no low bit to lose.
        key = (_ordered(value.to(tl.float32)) >> 1 << INDEX_BITS) | (LAST_INDEX - i)
        best = tl.maximum(best, tl.where(i < stop, key, 0))
    tl.store(keys + row * PARTS + part, tl.max(best))
    tl.debug_barrier()
    if tl.atomic_add(arrived + row, 1, sem="acq_rel", scope="gpu") == PARTS - 1:
        tl.store(arrived + row, 0)
        parts = tl.arange(0, PARTS)
        top = tl.max(tl.load(keys + row * PARTS + parts, cache_modifier=".cg"))
        index = LAST_INDEX - (top & LAST_INDEX)
        tl.store(tokens + row, tl.where(top >> INDEX_BITS > 0, index, 0).to(tl.int32))


def argmax(*, logits: torch.Tensor, tokens: torch.Tensor) -> object:
    """tokens[r] = the lowest index of row r's greatest logit: bf16 [rows, vocab] to i32 [rows].

    A NaN never wins, and -inf never beats the -inf that the search starts with, so a row of those
    gives 0. tokens may also be [rows, 1].
    """
    rows, vocab = matrix("logits", logits)
    disjoint({"tokens": tokens}, {"logits": logits})
    shape = (rows, 1) if tokens.dim() == 2 else (rows,)
    if rows > COUNTERS:
        raise ValueError(f"{rows} rows of logits: this kernel counts at most {COUNTERS}")
    parts = PARTS if vocab > BLOCK else 1
    arguments = (
        bf16("logits", logits, (rows, vocab)),
        i32("tokens", tokens, shape),
        scratch(2 * rows * parts)[: 2 * rows * parts].view(torch.int64),
        counters(),
        vocab,
        triton.cdiv(triton.cdiv(vocab, parts), BLOCK) * BLOCK,
        parts,
        BLOCK,
    )
    return bind(_argmax, (rows, parts), arguments)
