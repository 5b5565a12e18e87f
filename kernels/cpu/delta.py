"""The gated delta rule over a matrix state per slot, alone and with the gated norm after it.

Per value head, state S [dk, dv] of float32 (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024):
S *= e^decay; m = S^T k; S += k (beta (v - m))^T; y = S^T (q / sqrt(dk)), rounded to bf16.

Numerics: a column of S is a chain of its own, so lanes are columns and no sum crosses them: m and y
add over dk in order by fma from +0. Rows run in order, so that rows of one sequence pass through its
state as decode steps would; chunks split heads, whose states do not meet.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from .check import bf16, disjoint, f32, i32, matrix
from .delta_head import delta_head
from .gated_norm import gate_width, gated_head
from .jit import device, kernel
from .launch import Launch, bind
from .memory import load_f32, load_i32, load_i64, load_number, stack_f32, store_nan

__all__ = ["gdn_recurrence", "recurrence_norm"]

MAX_VALUE_DIM = 512
CORE_FLOATS = MAX_VALUE_DIM // 2  # that many bf16


@kernel
def _recurrence(arguments, chunk, chunks):
    """With a norm's weight, y is the gated norm of what would have been stored; else that itself."""
    qkv = load_i64(arguments, 0)
    decay = load_i64(arguments, 1)
    beta = load_i64(arguments, 2)
    h = load_i64(arguments, 3)
    slots = load_i64(arguments, 4)
    y = load_i64(arguments, 5)
    rows = load_i64(arguments, 6)
    heads = load_i64(arguments, 7)
    key_heads = load_i64(arguments, 8)
    dk = load_i64(arguments, 9)
    dv = load_i64(arguments, 10)
    slot_count = load_i64(arguments, 11)
    scale = load_number(arguments, 12)
    weight = load_i64(arguments, 13)
    gate = load_i64(arguments, 14)
    width = load_i64(arguments, 15)
    eps = load_number(arguments, 16)
    core = stack_f32(CORE_FLOATS)
    keys = key_heads * dk
    columns = 2 * keys + heads * dv
    for head in range(chunk * heads // chunks, (chunk + 1) * heads // chunks):
        key_at = head * key_heads // heads * dk
        for row in range(rows):
            out = y + 2 * (row * heads + head) * dv
            slot = load_i32(slots, row)
            if slot < 0 or slot >= slot_count:
                for i in range(dv):
                    store_nan(out, i)
                continue
            q = qkv + 4 * (row * columns + key_at)
            v = qkv + 4 * (row * columns + 2 * keys + head * dv)
            at = row * heads + head
            delta_head(
                h + 4 * (slot * heads + head) * dk * dv, q, q + 4 * keys, v,
                core if weight != 0 else out, load_f32(decay, at), load_f32(beta, at),
                scale, dk, dv,
            )  # fmt: skip
            if weight != 0:
                z = gate + 2 * (row * width + width - (heads - head) * dv)
                gated_head(core, weight, z, out, dv, eps)


class _Heads(NamedTuple):
    rows: int
    heads: int
    key_heads: int
    dk: int
    dv: int
    slot_count: int


def gdn_recurrence(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    y: torch.Tensor,
    key_heads: int,
    key_dim: int,
) -> Launch:
    """Each row through its slot's states, one a value head; heads share k and q in groups.

    qkv: f32 [rows, 2 key_heads * key_dim + heads * dv]; decay (a logarithm), beta: f32 [rows, heads]; h:
    f32 [slots, heads * key_dim * dv]; slots: i32 [rows]; y: bf16 [rows, heads * dv]. A row whose slot is
    outside h gives NaN and changes no state.
    """
    return _bind(qkv, decay, beta, h, slots, y, key_heads, key_dim, None, None, 0.0)


def recurrence_norm(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    y: torch.Tensor,
    key_heads: int,
    key_dim: int,
    eps: float,
) -> Launch:
    """`gdn_recurrence`, then `gated_rms_norm` of its rounded output: only h and y are written."""
    return _bind(qkv, decay, beta, h, slots, y, key_heads, key_dim, weight, gate, eps)


def _bind(
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    y: torch.Tensor,
    key_heads: int,
    key_dim: int,
    weight: torch.Tensor | None,
    gate: torch.Tensor | None,
    eps: float,
) -> Launch:
    shape = _heads(qkv, decay, h, y, key_heads, key_dim)
    rows, heads, _, dk, dv, slot_count = shape
    read = {"qkv": qkv, "decay": decay, "beta": beta, "slots": slots, "weight": weight}
    disjoint({"h": h, "y": y}, {**read, "gate": gate})
    width = 0 if gate is None else gate_width(gate, heads * dv)
    arguments = (
        f32("qkv", qkv, tuple(qkv.shape)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        f32("h", h, (slot_count, heads * dk * dv)),
        i32("slots", slots, (rows,)),
        bf16("y", y, (rows, heads * dv)),
        *shape,
        float(dk) ** -0.5,
        0 if weight is None else bf16("weight", weight, (dv,)),
        0 if gate is None else bf16("gate", gate, (rows, width)),
        width,
        float(eps),
    )
    return bind(_recurrence, arguments, (*read.values(), gate, h, y), 4 * rows * heads * dk * dv)


def _heads(
    qkv: torch.Tensor,
    decay: torch.Tensor,
    h: torch.Tensor,
    y: torch.Tensor,
    key_heads: int,
    key_dim: int,
) -> _Heads:
    rows, heads = matrix("decay", decay)
    columns, values = matrix("qkv", qkv)[1], matrix("y", y)[1]
    if values % heads or heads % key_heads or columns != 2 * key_heads * key_dim + values:
        raise ValueError(
            f"qkv has {columns} columns and y {values}: not {key_heads} heads of {key_dim} for q "
            f"and for k, which {heads} value heads share"
        )
    if values // heads > MAX_VALUE_DIM:
        raise ValueError(f"value heads of {values // heads}: at most {MAX_VALUE_DIM}")
    return _Heads(rows, heads, key_heads, key_dim, values // heads, matrix("h", h)[0])
