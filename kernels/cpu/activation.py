"""SiLU times up, with the SiLU rounded to bf16 first, as the Hugging Face models do."""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix
from .jit import kernel
from .launch import Launch, bind
from .memory import load1, load16, load_i64, store1, store16
from .scalar import silu_mul1
from .simd import LANES

__all__ = ["silu_mul"]


@kernel
def _silu_mul(arguments, chunk, chunks):
    both = load_i64(arguments, 0)
    y = load_i64(arguments, 1)
    rows = load_i64(arguments, 2)
    inter = load_i64(arguments, 3)
    whole = inter - inter % LANES
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        gate = both + 4 * row * inter
        up = gate + 2 * inter
        out = y + 2 * row * inter
        for i in range(0, whole, LANES):
            store16(out, i, silu_mul1(load16(gate, i), load16(up, i)))
        for i in range(whole, inter):
            store1(out, i, silu_mul1(load1(gate, i), load1(up, i)))


def silu_mul(*, gate_up: torch.Tensor, y: torch.Tensor) -> Launch:
    """SiLU(gate) * up: gate_up [rows, 2 inter] is gate||up, y [rows, inter], all bf16."""
    rows, inter = matrix("y", y)
    disjoint({"y": y}, {"gate_up": gate_up})
    arguments = (
        bf16("gate_up", gate_up, (rows, 2 * inter)),
        bf16("y", y, (rows, inter)),
        rows,
        inter,
    )
    # An exp costs as much as reading some sixteen elements, so it counts so.
    return bind(_silu_mul, arguments, (gate_up, y), 32 * rows * inter)
