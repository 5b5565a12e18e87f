"""The RMS norm of the delta rule's output, per head, with a plain weight, times silu(z).

Numerics: those of norm.py with a plain weight, but squares are of float32, sixteen lanes a step;
rounded to bf16 after the weight, then times silu(z) in float32 and rounded once more.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, f32, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load1, load16, load_f32, load_f32x16, load_i64, load_number, store1, store16
from .norm import sum_of_squares_f32
from .scalar import gated1, rsqrt
from .simd import LANES, add, div, like, splat

__all__ = ["gated_rms_norm"]


@device
def gated_head(x, weight, gate, y, dim, eps):
    """One head: y = bf16(bf16(bf16(x / rms) * weight) * silu(gate))."""
    total = sum_of_squares_f32(x, dim)
    inverse = rsqrt(add(div(total, like(total, dim)), eps))
    lanes = splat(inverse)
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        store16(y, i, gated1(load_f32x16(x, i), lanes, load16(weight, i), load16(gate, i)))
    for i in range(whole, dim):
        store1(y, i, gated1(load_f32(x, i), inverse, load1(weight, i), load1(gate, i)))


@kernel
def _gated_rms_norm(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    weight = load_i64(arguments, 1)
    gate = load_i64(arguments, 2)
    y = load_i64(arguments, 3)
    rows = load_i64(arguments, 4)
    dim = load_i64(arguments, 5)
    width = load_i64(arguments, 6)
    head_dim = load_i64(arguments, 7)
    offset = load_i64(arguments, 8)
    eps = load_number(arguments, 9)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        z = gate + 2 * (row * width + offset)
        for at in range(0, dim, head_dim):
            first = row * dim + at
            gated_head(x + 4 * first, weight, z + 2 * at, y + 2 * first, head_dim, eps)


def gated_rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    gate_offset: int,
    y: torch.Tensor,
    eps: float,
) -> Launch:
    """The norm of each head of x, times weight [head_dim], times silu(z), into y.

    x: f32, y: bf16, [rows, heads * head_dim]; gate: bf16 [rows, columns], z being as many columns
    as x has, from gate_offset on.
    """
    rows, dim = matrix("x", x)
    width = gate_width(gate, gate_offset, dim)
    head_dim = weight.shape[-1]
    if dim % head_dim:
        raise ValueError(f"x has {dim} columns: not whole heads of weight's {head_dim}")
    disjoint({"y": y}, {"x": x, "weight": weight, "gate": gate})
    arguments = (
        f32("x", x, (rows, dim)),
        bf16("weight", weight, (head_dim,)),
        bf16("gate", gate, (rows, width)),
        bf16("y", y, (rows, dim)),
        rows,
        dim,
        width,
        head_dim,
        gate_offset,
        float(eps),
    )
    return bind(_gated_rms_norm, arguments, (x, weight, gate, y), 32 * rows * dim)


def gate_width(gate: torch.Tensor, offset: int, dim: int) -> int:
    """Columns of the tensor that has the gate in columns offset..offset+dim-1."""
    width = matrix("gate", gate)[1]
    if offset < 0 or offset + dim > width:
        raise ValueError(
            f"gate has {width} columns: not the {dim} from gate_offset {offset} on that are needed"
        )
    return width
