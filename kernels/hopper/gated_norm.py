"""The RMS norm of the delta rule's output, per head, with a plain weight, times silu(z).

Numerics: those of norm.py with a plain weight, but squares are of float32, summed by the written
tree of sums.py; rounded to bf16 after the weight, then times silu(z) in float32 and rounded again.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, f32, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import enter
from .scalar import gated1, rsqrt
from .sums import power_of_two, tree_sum

__all__ = ["gate_width", "gated_head", "gated_rms_norm"]


@device
def gated_head(x, weight, gate, eps, DIM: tl.constexpr):
    """One head: bf16(bf16(bf16(x / rms) * weight) * silu(gate)); x is filled up with zeros."""
    inverse = rsqrt(tl.div_rn(tree_sum(x * x), DIM * 1.0) + eps)
    return gated1(x, inverse, weight, gate).to(tl.bfloat16)


@kernel
def _gated_rms_norm(
    x, weight, gate, y, eps, heads, width, offset, DIM: tl.constexpr, BLOCK: tl.constexpr
):
    enter()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    here = i < DIM
    at = (row * heads + head) * DIM + i
    value = tl.load(x + at, mask=here, other=0.0)
    w = tl.load(weight + i, mask=here, other=0.0).to(tl.float32)
    z = tl.load(gate + row * width + offset + head * DIM + i, mask=here, other=0.0)
    tl.store(y + at, gated_head(value, w, z.to(tl.float32), eps, DIM), mask=here)


def gated_rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    gate_offset: int,
    y: torch.Tensor,
    eps: float,
) -> object:
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
        float(eps),
        dim // head_dim,
        width,
        gate_offset,
        head_dim,
        power_of_two(head_dim),
    )
    return bind(_gated_rms_norm, (rows, dim // head_dim), arguments)


def gate_width(gate: torch.Tensor, offset: int, dim: int) -> int:
    """Columns of the tensor that has the gate in columns offset..offset+dim-1."""
    width = matrix("gate", gate)[1]
    if offset < 0 or offset + dim > width:
        raise ValueError(
            f"gate has {width} columns: not the {dim} from gate_offset {offset} on that are needed"
        )
    return width
