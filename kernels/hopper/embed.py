"""Table lookup of token embeddings: a copy of bytes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, i32, matrix
from .jit import kernel
from .launch import bind
from .overlap import release, wait

__all__ = ["embed"]

BLOCK = 1024
PADDING = tl.constexpr(-1)


@kernel
def _embed(tokens, table, y, dim, vocab, BLOCK: tl.constexpr):
    # The first launch of a step: the next may start when the step before is written.
    wait()
    release()
    row = tl.program_id(0)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(tokens + row)
    inside = (token >= 0) & (token < vocab)
    here = i < dim
    value = tl.load(table + token.to(tl.int64) * dim + i, mask=here & inside, other=0.0)
    value = tl.where(inside | (token == PADDING), value, float("nan"))
    tl.store(y + row.to(tl.int64) * dim + i, value, mask=here)


def embed(*, token_ids: torch.Tensor, table: torch.Tensor, y: torch.Tensor) -> object:
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
        dim,
        vocab,
        BLOCK,
    )
    return bind(_embed, (rows, triton.cdiv(dim, BLOCK)), arguments)
