"""SiLU times up, with the SiLU rounded to bf16 first, as the Hugging Face models do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import bind
from .overlap import enter
from .scalar import silu_mul1

__all__ = ["silu_mul"]

BLOCK = 512


@kernel
def _silu_mul(gate_up, y, inter, BLOCK: tl.constexpr):
    enter()
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = i < inter
    gate = tl.load(gate_up + row * 2 * inter + i, mask=here, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * inter + inter + i, mask=here, other=0.0).to(tl.float32)
    tl.store(y + row * inter + i, silu_mul1(gate, up).to(tl.bfloat16), mask=here)


def silu_mul(*, gate_up: torch.Tensor, y: torch.Tensor) -> object:
    """SiLU(gate) * up: gate_up [rows, 2 inter] is gate||up, y [rows, inter], all bf16."""
    rows, inter = matrix("y", y)
    disjoint({"y": y}, {"gate_up": gate_up})
    arguments = (
        bf16("gate_up", gate_up, (rows, 2 * inter)),
        bf16("y", y, (rows, inter)),
        inter,
        BLOCK,
    )
    return bind(_silu_mul, (rows, triton.cdiv(inter, BLOCK)), arguments)
