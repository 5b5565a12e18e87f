"""The gated delta rule over a matrix state per slot, alone and with the gated norm after it.

Per value head, state S [dk, dv] of float32 (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024):
S *= e^decay; m = S^T k; S += k (beta (v - m))^T; y = S^T (q * scale).

Numerics: a column of S is a chain of its own, so lanes are columns and no sum crosses them: m and y
add over dk in order by fma from +0. Rows run in order, so that rows of one sequence pass through
its state as decode steps would; chunks split heads, whose states do not meet.

A row may leave its slot's state behind as it is right after the row: each head's bytes are copied
to a row of `steps`, from where a rejected draft's state is put back.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from .check import bf16, disjoint, f32, i32, matrix
from .delta_head import delta_head
from .gated_norm import gate_width, gated_head
from .jit import kernel
from .launch import Launch, bind
from .memory import (
    copy_bytes,
    load_f32,
    load_i32,
    load_i64,
    load_number,
    put_f32,
    stack_f32,
    store_nan,
)

__all__ = ["gdn_recurrence", "recurrence_norm"]

MAX_VALUE_DIM = 512
NAN = np.float32(np.nan)


@kernel
def _recurrence(arguments, chunk, chunks):
    """With a norm's weight, y is the gated norm of the core, else the core itself."""
    qkv = load_i64(arguments, 0)
    decay = load_i64(arguments, 1)
    beta = load_i64(arguments, 2)
    h = load_i64(arguments, 3)
    slots = load_i64(arguments, 4)
    steps = load_i64(arguments, 5)
    step_rows = load_i64(arguments, 6)
    y = load_i64(arguments, 7)
    rows = load_i64(arguments, 8)
    heads = load_i64(arguments, 9)
    k_heads = load_i64(arguments, 10)
    dk = load_i64(arguments, 11)
    dv = load_i64(arguments, 12)
    slot_count = load_i64(arguments, 13)
    step_count = load_i64(arguments, 14)
    scale = load_number(arguments, 15)
    weight = load_i64(arguments, 16)
    gate = load_i64(arguments, 17)
    width = load_i64(arguments, 18)
    offset = load_i64(arguments, 19)
    eps = load_number(arguments, 20)
    core = stack_f32(MAX_VALUE_DIM)
    keys = k_heads * dk
    columns = 2 * keys + heads * dv
    for head in range(chunk * heads // chunks, (chunk + 1) * heads // chunks):
        key_at = head * k_heads // heads * dk
        for row in range(rows):
            first = (row * heads + head) * dv
            slot = load_i32(slots, row)
            if slot < 0 or slot >= slot_count:
                for i in range(first, first + dv):
                    if weight != 0:
                        store_nan(y, i)
                    else:
                        put_f32(y, i, NAN)
                continue
            q = qkv + 4 * (row * columns + key_at)
            v = qkv + 4 * (row * columns + 2 * keys + head * dv)
            at = row * heads + head
            state = h + 4 * (slot * heads + head) * dk * dv
            delta_head(
                state, q, q + 4 * keys, v,
                core if weight != 0 else y + 4 * first, load_f32(decay, at), load_f32(beta, at),
                scale, dk, dv,
            )  # fmt: skip
            step = load_i32(step_rows, row)
            if 0 <= step < step_count:
                copy_bytes(steps + 4 * (step * heads + head) * dk * dv, state, 4 * dk * dv)
            if weight != 0:
                z = gate + 2 * (row * width + offset + head * dv)
                gated_head(core, weight, z, y + 2 * first, dv, eps)


class _Heads(NamedTuple):
    rows: int
    heads: int
    k_heads: int
    dk: int
    dv: int
    slot_count: int
    step_count: int


class _Norm(NamedTuple):
    """What a norm behind the recurrence reads."""

    weight: torch.Tensor
    gate: torch.Tensor
    gate_offset: int
    eps: float


def gdn_recurrence(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
) -> Launch:
    """Each row through its slot's states, one a value head; heads share k and q in groups.

    qkv: f32 [rows, 2 k_heads * k_dim + heads * dv]; decay (a logarithm), beta: f32 [rows, heads];
    h: f32 [slots, heads * k_dim * dv]; slots: i32 [rows]; y: f32 [rows, heads * dv]. A row whose
    slot is outside h gives NaN and changes no state. steps: f32 [any number of rows, as h];
    step_rows: i32 [rows], the row of steps that receives the slot's states after this row; where it
    is outside steps, or the slot outside h, nothing is written.
    """
    return _bind(qkv, decay, beta, h, slots, steps, step_rows, y, k_heads, k_dim, scale, None)


def recurrence_norm(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    weight: torch.Tensor,
    gate: torch.Tensor,
    gate_offset: int,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
    eps: float,
) -> Launch:
    """`gdn_recurrence`, then `gated_rms_norm` into y of bf16: only h, steps and y are written."""
    norm = _Norm(weight, gate, gate_offset, eps)
    return _bind(qkv, decay, beta, h, slots, steps, step_rows, y, k_heads, k_dim, scale, norm)


def _bind(
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
    norm: _Norm | None,
) -> Launch:
    shape = _heads(qkv, decay, h, steps, y, k_heads, k_dim)
    rows, heads, _, dk, dv, slot_count, step_count = shape
    read = {
        "qkv": qkv, "decay": decay, "beta": beta, "slots": slots, "step_rows": step_rows,
        "weight": norm and norm.weight, "gate": norm and norm.gate,
    }  # fmt: skip
    disjoint({"h": h, "steps": steps, "y": y}, read)
    arguments = (
        f32("qkv", qkv, tuple(qkv.shape)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        f32("h", h, (slot_count, heads * dk * dv)),
        i32("slots", slots, (rows,)),
        f32("steps", steps, (step_count, heads * dk * dv)),
        i32("step_rows", step_rows, (rows,)),
        (f32 if norm is None else bf16)("y", y, (rows, heads * dv)),
        *shape,
        float(scale),
        *_norm_arguments(norm, rows, heads, dv),
    )
    return bind(_recurrence, arguments, (*read.values(), h, steps, y), 4 * rows * heads * dk * dv)


def _norm_arguments(norm: _Norm | None, rows: int, heads: int, dv: int) -> tuple[int | float, ...]:
    """Weight, gate, its columns and offset, eps: zeros where nothing is normed."""
    if norm is None:
        return 0, 0, 0, 0, 0.0
    width = gate_width(norm.gate, norm.gate_offset, heads * dv)
    weight, gate = bf16("weight", norm.weight, (dv,)), bf16("gate", norm.gate, (rows, width))
    return weight, gate, width, norm.gate_offset, float(norm.eps)


def _heads(
    qkv: torch.Tensor,
    decay: torch.Tensor,
    h: torch.Tensor,
    steps: torch.Tensor,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
) -> _Heads:
    rows, heads = matrix("decay", decay)
    columns, values = matrix("qkv", qkv)[1], matrix("y", y)[1]
    if values % heads or heads % k_heads or columns != 2 * k_heads * k_dim + values:
        raise ValueError(
            f"qkv has {columns} columns and y {values}: not {k_heads} heads of {k_dim} for q "
            f"and for k, which {heads} value heads share"
        )
    if values // heads > MAX_VALUE_DIM:
        raise ValueError(f"value heads of {values // heads}: at most {MAX_VALUE_DIM}")
    slot_count, step_count = matrix("h", h)[0], matrix("steps", steps)[0]
    return _Heads(rows, heads, k_heads, k_dim, values // heads, slot_count, step_count)
