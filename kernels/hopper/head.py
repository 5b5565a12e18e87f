"""Greedy choice of a token.

Each element becomes one integer: its order among the values above, its index, counted down, below.
The greatest integer is the greatest value's lowest index, whichever way the row is split.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .launch import bind

__all__ = ["argmax"]

BLOCK = 4096
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
def _argmax(logits, tokens, vocab, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    best = tl.zeros((BLOCK,), tl.int64)
    for start in range(0, vocab, BLOCK):
        i = start + lane
        value = tl.load(logits + row * vocab + i, mask=i < vocab, other=float("-inf"))
        # Halved, the order leaves the sign free; a widened bf16 has no low bit to lose.
        key = (_ordered(value.to(tl.float32)) >> 1 << INDEX_BITS) | (LAST_INDEX - i)
        best = tl.maximum(best, tl.where(i < vocab, key, 0))
    top = tl.max(best)
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
    arguments = (
        bf16("logits", logits, (rows, vocab)), i32("tokens", tokens, shape), vocab, BLOCK,
    )  # fmt: skip
    return bind(_argmax, (rows,), arguments, warps=8)
