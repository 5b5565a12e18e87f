"""Table lookup of token embeddings: a copy of bytes."""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, i32, matrix
from .jit import kernel
from .launch import Launch, bind
from .memory import copy_bytes, load_i32, load_i64, store1, store_nan

__all__ = ["embed"]

PADDING = -1
ZERO = np.float32(0.0)


@kernel
def _embed(arguments, chunk, chunks):
    tokens = load_i64(arguments, 0)
    table = load_i64(arguments, 1)
    y = load_i64(arguments, 2)
    rows = load_i64(arguments, 3)
    dim = load_i64(arguments, 4)
    vocab = load_i64(arguments, 5)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        token = load_i32(tokens, row)
        if 0 <= token < vocab:
            copy_bytes(y + 2 * row * dim, table + 2 * token * dim, 2 * dim)
        elif token == PADDING:
            for i in range(dim):
                store1(y, row * dim + i, ZERO)
        else:
            for i in range(dim):
                store_nan(y, row * dim + i)


def embed(*, token_ids: torch.Tensor, table: torch.Tensor, y: torch.Tensor) -> Launch:
    """y[r] = table[token_ids[r]]: ids i32 [rows], table bf16 [vocab, dim], y bf16 [rows, dim].

    Id -1, a padding row, gives zeros; any other id outside the table NaN, never a read outside.
    """
    rows, dim = matrix("y", y)
    vocab, _ = matrix("table", table)
    disjoint({"y": y}, {"token_ids": token_ids, "table": table})
    arguments = (
        i32("token_ids", token_ids, (rows,)),
        bf16("table", table, (vocab, dim)),
        bf16("y", y, (rows, dim)),
        rows,
        dim,
        vocab,
    )
    return bind(_embed, arguments, (token_ids, table, y), 2 * rows * dim)
