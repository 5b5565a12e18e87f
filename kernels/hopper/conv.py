"""The causal depthwise convolution over a window per slot, and the L2 norm of q and k heads.

Numerics: the window keeps the last four inputs of a channel, as float32, oldest first. The sum is
w0 x0, then three fma in time's order, then SiLU, all in float32, stored as float32. The norm is
x / sqrt(sum of squares + eps), the sum by the written tree of sums.py. Rows of one sequence pass
through its window in order, as decode steps would.

A row may leave its slot's window behind as it is right after the row, in a row of `steps`, from
where a rejected draft's state is put back.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import enter
from .scalar import rsqrt, silu
from .slots import is_first, last_row
from .sums import power_of_two, tree_sum

__all__ = ["conv1d_update", "conv_l2_norm", "l2_norm"]

TAPS = 4
UNIT = 128
"""Channels of a program where no head says otherwise."""


@device
def l2_normed(x, eps):
    """A head of float32, filled up with zeros, over its L2 norm."""
    return x * rsqrt(tree_sum(x * x) + eps)


@kernel
def _conv1d_update(
    x, taps, conv, slots, steps, step_rows, y, eps, rows, width, channels, slot_count, step_count,
    heads, UNIT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """A unit of channels of all rows of one slot; with NORM the first `heads` units are normed."""
    enter()
    row, unit = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + row)
    inner = tl.arange(0, BLOCK)
    c = unit * UNIT + inner
    here = (inner < UNIT) & (c < channels)
    if (slot < 0) | (slot >= slot_count):
        tl.store(y + row.to(tl.int64) * channels + c, float("nan"), mask=here)
    elif is_first(slots, row, slot, ROWS):
        at = conv + (slot.to(tl.int64) * channels + c) * 4
        zeroth = tl.load(at, mask=here, other=0.0)
        first = tl.load(at + 1, mask=here, other=0.0)
        second = tl.load(at + 2, mask=here, other=0.0)
        third = tl.load(at + 3, mask=here, other=0.0)
        tap0 = tl.load(taps + c * 4, mask=here, other=0.0).to(tl.float32)
        tap1 = tl.load(taps + c * 4 + 1, mask=here, other=0.0).to(tl.float32)
        tap2 = tl.load(taps + c * 4 + 2, mask=here, other=0.0).to(tl.float32)
        tap3 = tl.load(taps + c * 4 + 3, mask=here, other=0.0).to(tl.float32)
        for r in range(row, last_row(slots, rows, slot, ROWS) + 1):
            if tl.load(slots + r) == slot:
                wide = tl.cast(r, tl.int64)
                new = tl.load(x + wide * width + c, mask=here, other=0.0).to(tl.float32)
                zeroth, first, second, third = first, second, third, new
                total = tl.fma(first, tap1, zeroth * tap0)
                total = tl.fma(second, tap2, total)
                value = silu(tl.fma(third, tap3, total))
                step = tl.load(step_rows + r)
                if (step >= 0) & (step < step_count):
                    kept = steps + (step.to(tl.int64) * channels + c) * 4
                    tl.store(kept, zeroth, mask=here)
                    tl.store(kept + 1, first, mask=here)
                    tl.store(kept + 2, second, mask=here)
                    tl.store(kept + 3, third, mask=here)
                if NORM:
                    if unit < heads:
                        value = l2_normed(tl.where(here, value, 0.0), eps)
                tl.store(y + wide * channels + c, value, mask=here)
        tl.store(at, zeroth, mask=here)
        tl.store(at + 1, first, mask=here)
        tl.store(at + 2, second, mask=here)
        tl.store(at + 3, third, mask=here)


@kernel
def _l2_norm(x, y, eps, channels, heads, UNIT: tl.constexpr, BLOCK: tl.constexpr):
    enter()
    row, unit = tl.program_id(0).to(tl.int64), tl.program_id(1)
    inner = tl.arange(0, BLOCK)
    c = unit * UNIT + inner
    here = (inner < UNIT) & (c < channels)
    value = tl.load(x + row * channels + c, mask=here, other=0.0)
    if unit < heads:
        value = l2_normed(value, eps)
    tl.store(y + row * channels + c, value, mask=here)


def conv1d_update(
    *,
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
) -> object:
    """Four causal taps and SiLU over the first channels of x, each row through its slot's window.

    x: bf16 [rows, at least channels]; taps: bf16 [channels, 4] (or [channels, 1, 4]); conv: f32
    [slots, channels * 4]; slots: i32 [rows]; y: f32 [rows, channels]. A row whose slot is outside
    conv gives NaN and changes no window. steps: f32 [any number of rows, channels * 4]; step_rows:
    i32 [rows], the row of steps that receives the slot's window after this row; where it is outside
    steps, or the slot outside conv, nothing is written.
    """
    return _bind_conv(x, taps, conv, slots, steps, step_rows, y, 0, UNIT, 0.0)


def conv_l2_norm(
    *,
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
    eps: float,
) -> object:
    """`conv1d_update`, then `l2_norm`: only y, the windows and steps are written."""
    _check_heads(y.shape[-1], k_heads, k_dim)
    return _bind_conv(x, taps, conv, slots, steps, step_rows, y, 2 * k_heads, k_dim, eps)


def _bind_conv(
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
    heads: int,
    unit: int,
    eps: float,
) -> object:
    rows, width = matrix("x", x)
    channels = matrix("y", y)[1]
    slot_count, step_count = matrix("conv", conv)[0], matrix("steps", steps)[0]
    if width < channels:
        raise ValueError(f"x has {width} columns: fewer than y's {channels}")
    shape = (channels, 1, TAPS) if taps.dim() == 3 else (channels, TAPS)
    read = {"x": x, "taps": taps, "slots": slots, "step_rows": step_rows}
    disjoint({"conv": conv, "steps": steps, "y": y}, {**read})
    arguments = (
        bf16("x", x, (rows, width)),
        bf16("taps", taps, shape),
        f32("conv", conv, (slot_count, TAPS * channels)),
        i32("slots", slots, (rows,)),
        f32("steps", steps, (step_count, TAPS * channels)),
        i32("step_rows", step_rows, (rows,)),
        f32("y", y, (rows, channels)),
        float(eps),
        rows,
        width,
        channels,
        slot_count,
        step_count,
        heads,
        unit,
        power_of_two(unit),
        power_of_two(rows),
        heads > 0,
    )
    return bind(_conv1d_update, (rows, triton.cdiv(channels, unit)), arguments)


def l2_norm(*, x: torch.Tensor, y: torch.Tensor, k_heads: int, k_dim: int, eps: float) -> object:
    """Each q and k head of a row over its L2 norm; the columns behind them are copied.

    x, y: f32 [rows, columns]: k_heads heads of q, as many of k, each of k_dim, then the others.
    """
    rows, channels = matrix("x", x)
    _check_heads(channels, k_heads, k_dim)
    disjoint({"y": y}, {"x": x})
    arguments = (
        f32("x", x, (rows, channels)),
        f32("y", y, (rows, channels)),
        float(eps),
        channels,
        2 * k_heads,
        k_dim,
        power_of_two(k_dim),
    )
    return bind(_l2_norm, (rows, triton.cdiv(channels, k_dim)), arguments)


def _check_heads(channels: int, k_heads: int, k_dim: int) -> None:
    if 2 * k_heads * k_dim > channels:
        raise ValueError(
            f"{k_heads} heads of {k_dim} for q and for k are more than the {channels} columns"
        )
