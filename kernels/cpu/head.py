"""Greedy choice of a token."""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, i32, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load1, load16, load_i64, store_i32
from .simd import LANES, equal_lanes, greatest, hmax, splat

__all__ = ["argmax"]

MINUS_INFINITY = np.float32(-np.inf)


@device
def row_max(x, n):
    """The greatest of -inf and n bf16 elements; a NaN never wins."""
    best = splat(MINUS_INFINITY)
    whole = n - n % LANES
    for i in range(0, whole, LANES):
        best = greatest(best, load16(x, i))
    top = hmax(best)
    for i in range(whole, n):
        top = greatest(top, load1(x, i))
    return top


@device
def first_equal(x, n, value):
    """The lowest index whose element equals `value`; n when none does."""
    whole = n - n % LANES
    values = splat(value)
    start = 0
    while start < whole and equal_lanes(load16(x, start), values) == 0:
        start += LANES
    while start < n and load1(x, start) != value:
        start += 1
    return start


@kernel
def _argmax(arguments, chunk, chunks):
    logits = load_i64(arguments, 0)
    tokens = load_i64(arguments, 1)
    rows = load_i64(arguments, 2)
    vocab = load_i64(arguments, 3)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        x = logits + 2 * row * vocab
        top = row_max(x, vocab)
        # Where nothing is greater than -inf, index 0 has not been beaten.
        store_i32(tokens, row, first_equal(x, vocab, top) if top > MINUS_INFINITY else 0)


def argmax(*, logits: torch.Tensor, tokens: torch.Tensor) -> Launch:
    """tokens[r] = the lowest index of row r's greatest logit: bf16 [rows, vocab] to i32 [rows].

    A NaN never wins, and -inf never beats the -inf that the search starts with, so a row of those
    gives 0. tokens may also be [rows, 1].
    """
    rows, vocab = matrix("logits", logits)
    disjoint({"tokens": tokens}, {"logits": logits})
    shape = (rows, 1) if tokens.dim() == 2 else (rows,)
    arguments = (bf16("logits", logits, (rows, vocab)), i32("tokens", tokens, shape), rows, vocab)
    return bind(_argmax, arguments, (logits, tokens), 2 * rows * vocab)
