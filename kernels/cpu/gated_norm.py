"""The RMS norm of the delta rule's output, per head, with a plain weight, times silu(z).

Numerics: those of norm.py with a plain weight, rounded to bf16 after the weight; then times silu(z)
in float32, rounded once more.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load1, load16, load_i64, load_number, store1, store16
from .norm import inverse_rms
from .scalar import gated1
from .simd import LANES, splat

__all__ = ["gated_rms_norm"]


@device
def gated_head(x, weight, gate, y, dim, eps):
    """One head: y = bf16(bf16(bf16(x / rms) * weight) * silu(gate))."""
    inverse = inverse_rms(x, dim, eps)
    lanes = splat(inverse)
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        store16(y, i, gated1(load16(x, i), lanes, load16(weight, i), load16(gate, i)))
    for i in range(whole, dim):
        store1(y, i, gated1(load1(x, i), inverse, load1(weight, i), load1(gate, i)))


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
    eps = load_number(arguments, 8)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        z = gate + 2 * (row * width + width - dim)
        for at in range(0, dim, head_dim):
            start = 2 * (row * dim + at)
            gated_head(x + start, weight, z + 2 * at, y + start, head_dim, eps)


def gated_rms_norm(
    *, x: torch.Tensor, weight: torch.Tensor, gate: torch.Tensor, y: torch.Tensor, eps: float
) -> Launch:
    """The norm of each head of x times weight [head_dim] times silu of the gate's LAST columns.

    x, y: bf16 [rows, heads * head_dim]; gate: bf16 [rows, at least as many], as q||k||v||z.
    """
    rows, dim = matrix("x", x)
    width = gate_width(gate, dim)
    head_dim = weight.shape[-1]
    if dim % head_dim:
        raise ValueError(f"x has {dim} columns: not whole heads of weight's {head_dim}")
    disjoint({"y": y}, {"x": x, "weight": weight, "gate": gate})
    arguments = (
        bf16("x", x, (rows, dim)),
        bf16("weight", weight, (head_dim,)),
        bf16("gate", gate, (rows, width)),
        bf16("y", y, (rows, dim)),
        rows,
        dim,
        width,
        head_dim,
        float(eps),
    )
    return bind(_gated_rms_norm, arguments, (x, weight, gate, y), 32 * rows * dim)


def gate_width(gate: torch.Tensor, dim: int) -> int:
    """Columns of the gate's tensor, whose last `dim` are the gate."""
    width = matrix("gate", gate)[1]
    if width < dim:
        raise ValueError(f"gate has {width} columns: fewer than the {dim} that it gates")
    return width
