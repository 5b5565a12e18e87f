"""The gated delta rule over a matrix state per slot, alone and with the gated norm after it.

Per value head, state S [dk, dv] of float32 (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024):
S *= e^decay; m = S^T k; S += k (beta (v - m))^T; y = S^T (q * scale).

Numerics: m and y are sums over dk of rounded products, in the order that the state's block has over
threads: the block's form depends on dk and dv only. The update is by fma. Rows of one sequence pass
through its state in order, as decode steps would; the state stays in registers meanwhile.

A row may leave its slot's state behind as it is right after the row, in a row of `steps`, from
where a rejected draft's state is put back.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .gated_norm import gate_width, gated_head
from .jit import kernel
from .launch import bind
from .overlap import enter
from .scalar import exp
from .slots import is_first, last_row
from .sums import power_of_two

__all__ = ["gdn_recurrence", "recurrence_norm", "value_dim"]

MAX_STATE = 256 * 256
"""Elements of a state that a program holds in registers."""
WARPS = 8


@kernel
def _recurrence(
    qkv, decay, beta, h, slots, steps, step_rows, y, weight, gate, rows, heads, k_heads,
    slot_count, step_count, scale, width, offset, eps, DK: tl.constexpr, DV: tl.constexpr,
    K: tl.constexpr, V: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """With NORM, y is the gated norm of the core, else the core itself."""
    enter()
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    i, j = tl.arange(0, K), tl.arange(0, V)
    keys = k_heads * DK
    columns = 2 * keys + heads * DV
    key_at = head * k_heads // heads * DK
    if (slot < 0) | (slot >= slot_count):
        at = (row.to(tl.int64) * heads + head) * DV + j
        tl.store(y + at, float("nan"), mask=j < DV)
    elif is_first(slots, row, slot, ROWS):
        inside = i[:, None] * DV + j[None, :]
        held = (i < DK)[:, None] & (j < DV)[None, :]
        place = h + (slot.to(tl.int64) * heads + head) * DK * DV + inside
        state = tl.load(place, mask=held, other=0.0)
        for r in range(row, last_row(slots, rows, slot, ROWS) + 1):
            if tl.load(slots + r) == slot:
                wide = tl.cast(r, tl.int64)
                base = qkv + wide * columns
                q = tl.load(base + key_at + i, mask=i < DK, other=0.0) * scale
                k = tl.load(base + keys + key_at + i, mask=i < DK, other=0.0)
                v = tl.load(base + 2 * keys + head * DV + j, mask=j < DV, other=0.0)
                keep = exp(tl.load(decay + wide * heads + head))
                strength = tl.load(beta + wide * heads + head)
                state = state * keep
                m = tl.sum(state * k[:, None], 0)
                d = strength * (v - m)
                state = tl.fma(
                    tl.broadcast_to(k[:, None], (K, V)), tl.broadcast_to(d[None, :], (K, V)), state
                )
                core = tl.sum(state * q[:, None], 0)
                step = tl.load(step_rows + r)
                if (step >= 0) & (step < step_count):
                    kept = steps + (step.to(tl.int64) * heads + head) * DK * DV + inside
                    tl.store(kept, state, mask=held)
                at = (wide * heads + head) * DV + j
                if NORM:
                    w = tl.load(weight + j, mask=j < DV, other=0.0).to(tl.float32)
                    z = tl.load(
                        gate + wide * width + offset + head * DV + j, mask=j < DV, other=0.0
                    ).to(tl.float32)
                    value = gated_head(tl.where(j < DV, core, 0.0), w, z, eps, DV)
                    tl.store(y + at, value, mask=j < DV)
                else:
                    tl.store(y + at, core, mask=j < DV)
        tl.store(place, state, mask=held)


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
) -> object:
    """Each row through its slot's states, one a value head; heads share k and q in groups.

    qkv: f32 [rows, 2 k_heads * k_dim + heads * dv]; decay (a logarithm), beta: f32 [rows, heads];
    h: f32 [slots, heads * k_dim * dv]; slots: i32 [rows]; y: f32 [rows, heads * dv]. A row whose
    slot is outside h gives NaN and changes no state. steps: f32 [any number of rows, as h];
    step_rows: i32 [rows], the row of steps that receives the slot's states after this row; where it
    is outside steps, or the slot outside h, nothing is written.
    """
    return _bind(
        qkv, decay, beta, h, slots, steps, step_rows, y, k_heads, k_dim, scale, None, None, 0, 0.0
    )


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
) -> object:
    """`gdn_recurrence`, then `gated_rms_norm` into y of bf16: only h, steps and y are written."""
    return _bind(
        qkv, decay, beta, h, slots, steps, step_rows, y, k_heads, k_dim, scale, weight, gate,
        gate_offset, eps,
    )  # fmt: skip


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
    weight: torch.Tensor | None,
    gate: torch.Tensor | None,
    gate_offset: int,
    eps: float,
) -> object:
    (rows, heads), dk, dv = matrix("decay", decay), k_dim, value_dim(qkv, decay, y, k_heads, k_dim)
    slot_count, step_count = matrix("h", h)[0], matrix("steps", steps)[0]
    read = {
        "qkv": qkv, "decay": decay, "beta": beta, "slots": slots, "step_rows": step_rows,
        "weight": weight, "gate": gate,
    }  # fmt: skip
    disjoint({"h": h, "steps": steps, "y": y}, read)
    width = 0 if gate is None else gate_width(gate, gate_offset, heads * dv)
    arguments = (
        f32("qkv", qkv, tuple(qkv.shape)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        f32("h", h, (slot_count, heads * dk * dv)),
        i32("slots", slots, (rows,)),
        f32("steps", steps, (step_count, heads * dk * dv)),
        i32("step_rows", step_rows, (rows,)),
        (f32 if weight is None else bf16)("y", y, (rows, heads * dv)),
        y if weight is None else bf16("weight", weight, (dv,)),
        y if gate is None else bf16("gate", gate, (rows, width)),
        rows,
        heads,
        k_heads,
        slot_count,
        step_count,
        float(scale),
        width,
        gate_offset,
        float(eps),
        dk,
        dv,
        power_of_two(dk),
        power_of_two(dv),
        power_of_two(rows),
        weight is not None,
    )
    return bind(_recurrence, (rows, heads), arguments, warps=WARPS)


def value_dim(
    qkv: torch.Tensor, decay: torch.Tensor, y: torch.Tensor, k_heads: int, k_dim: int
) -> int:
    """The dim of a value head, if all of them fit together."""
    heads, columns, values = matrix("decay", decay)[1], matrix("qkv", qkv)[1], matrix("y", y)[1]
    if values % heads or heads % k_heads or columns != 2 * k_heads * k_dim + values:
        raise ValueError(
            f"qkv has {columns} columns and y {values}: not {k_heads} heads of {k_dim} for q "
            f"and for k, which {heads} value heads share"
        )
    if power_of_two(k_dim) * power_of_two(values // heads) > MAX_STATE:
        raise ValueError(f"states of {k_dim} x {values // heads}: at most {MAX_STATE} elements")
    return values // heads
