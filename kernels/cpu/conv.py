"""The causal depthwise convolution over a window per slot, and the L2 norm of q and k heads.

Numerics: the window keeps the last four inputs of a channel, as float32, oldest first. The sum is
w0 x0, then three fma in time's order, then SiLU, all in float32, stored as float32. The norm is
x / sqrt(sum of squares + eps): squares by lanes of sixteen in two accumulators and the fixed tree,
the last dim % 32 one by one. Rows run in order, so that rows of one sequence pass through its
window as decode steps would; chunks split channels, whose windows do not meet.

A row may leave its slot's window behind as it is right after the row: the bytes of the chunk's
channels are copied to a row of `steps`, from where a rejected draft's state is put back.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, disjoint, f32, i32, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import (
    copy_bytes,
    load1,
    load_f32,
    load_f32x16,
    load_i32,
    load_i64,
    load_number,
    put_f32,
    put_f32x16,
)
from .norm import sum_of_squares_f32
from .scalar import rsqrt, silu
from .simd import LANES, add, fma, mul, splat

__all__ = ["conv1d_update", "conv_l2_norm", "l2_norm"]

TAPS = 4
NAN = np.float32(np.nan)


@device
def fill_nan(y, low, high):
    """float32 elements low..high-1 become the one NaN."""
    for i in range(low, high):
        put_f32(y, i, NAN)


@device
def conv_channels(x, taps, window, y, low, high):
    """One row's channels low..high-1: the input enters the window, the taps are summed, SiLU."""
    for channel in range(low, high):
        at = TAPS * channel
        oldest = load_f32(window, at + 1)
        older = load_f32(window, at + 2)
        last = load_f32(window, at + 3)
        new = load1(x, channel)
        put_f32(window, at, oldest)
        put_f32(window, at + 1, older)
        put_f32(window, at + 2, last)
        put_f32(window, at + 3, new)
        total = mul(oldest, load1(taps, at))
        total = fma(older, load1(taps, at + 1), total)
        total = fma(last, load1(taps, at + 2), total)
        put_f32(y, channel, fma(new, load1(taps, at + 3), total))
    whole = low + (high - low) // LANES * LANES
    for i in range(low, whole, LANES):
        put_f32x16(y, i, silu(load_f32x16(y, i)))
    for i in range(whole, high):
        put_f32(y, i, silu(load_f32(y, i)))


@device
def l2_norm_head(x, y, dim, eps):
    """One head of float32, x to y, which may be x."""
    total = sum_of_squares_f32(x, dim)
    inverse = rsqrt(add(total, eps))
    lanes = splat(inverse)
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        put_f32x16(y, i, mul(load_f32x16(x, i), lanes))
    for i in range(whole, dim):
        put_f32(y, i, mul(load_f32(x, i), inverse))


@kernel
def _conv1d_update(arguments, chunk, chunks):
    """With a head_dim, the first `heads` heads of it are normed; a chunk has whole heads then."""
    x = load_i64(arguments, 0)
    taps = load_i64(arguments, 1)
    conv = load_i64(arguments, 2)
    slots = load_i64(arguments, 3)
    steps = load_i64(arguments, 4)
    step_rows = load_i64(arguments, 5)
    y = load_i64(arguments, 6)
    rows = load_i64(arguments, 7)
    width = load_i64(arguments, 8)
    channels = load_i64(arguments, 9)
    slot_count = load_i64(arguments, 10)
    step_count = load_i64(arguments, 11)
    unit = load_i64(arguments, 12)
    heads = load_i64(arguments, 13)
    eps = load_number(arguments, 14)
    units = (channels + unit - 1) // unit
    low = chunk * units // chunks * unit
    high = min((chunk + 1) * units // chunks * unit, channels)
    for row in range(rows):
        slot = load_i32(slots, row)
        out = y + 4 * row * channels
        if 0 <= slot < slot_count:
            window = conv + 4 * TAPS * slot * channels
            conv_channels(x + 2 * row * width, taps, window, out, low, high)
            step = load_i32(step_rows, row)
            if 0 <= step < step_count:
                kept = steps + 4 * TAPS * (step * channels + low)
                copy_bytes(kept, window + 4 * TAPS * low, 4 * TAPS * (high - low))
            for at in range(low, min(high, heads * unit), unit):
                l2_norm_head(out + 4 * at, out + 4 * at, unit, eps)
        else:
            fill_nan(out, low, high)


@kernel
def _l2_norm(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    y = load_i64(arguments, 1)
    rows = load_i64(arguments, 2)
    channels = load_i64(arguments, 3)
    heads = load_i64(arguments, 4)
    head_dim = load_i64(arguments, 5)
    eps = load_number(arguments, 6)
    normed = heads * head_dim
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 4 * row * channels
        for head in range(heads):
            start = at + 4 * head * head_dim
            l2_norm_head(x + start, y + start, head_dim, eps)
        copy_bytes(y + at + 4 * normed, x + at + 4 * normed, 4 * (channels - normed))


def conv1d_update(
    *,
    x: torch.Tensor,
    taps: torch.Tensor,
    conv: torch.Tensor,
    slots: torch.Tensor,
    steps: torch.Tensor,
    step_rows: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
    """Four causal taps and SiLU over the first channels of x, each row through its slot's window.

    x: bf16 [rows, at least channels]; taps: bf16 [channels, 4] (or [channels, 1, 4]); conv: f32
    [slots, channels * 4]; slots: i32 [rows]; y: f32 [rows, channels]. A row whose slot is outside
    conv gives NaN and changes no window. steps: f32 [any number of rows, channels * 4]; step_rows:
    i32 [rows], the row of steps that receives the slot's window after this row; where it is outside
    steps, or the slot outside conv, nothing is written.
    """
    return _bind_conv(x, taps, conv, slots, steps, step_rows, y, 0, LANES, 0.0)


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
) -> Launch:
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
) -> Launch:
    rows, width = matrix("x", x)
    channels = matrix("y", y)[1]
    slot_count = matrix("conv", conv)[0]
    if width < channels:
        raise ValueError(f"x has {width} columns: fewer than y's {channels}")
    shape = (channels, 1, TAPS) if taps.dim() == 3 else (channels, TAPS)
    read = {"x": x, "taps": taps, "slots": slots, "step_rows": step_rows}
    disjoint({"conv": conv, "steps": steps, "y": y}, {**read})
    step_count = matrix("steps", steps)[0]
    arguments = (
        bf16("x", x, (rows, width)),
        bf16("taps", taps, shape),
        f32("conv", conv, (slot_count, TAPS * channels)),
        i32("slots", slots, (rows,)),
        f32("steps", steps, (step_count, TAPS * channels)),
        i32("step_rows", step_rows, (rows,)),
        f32("y", y, (rows, channels)),
        rows,
        width,
        channels,
        slot_count,
        step_count,
        unit,
        heads,
        float(eps),
    )
    kept = (*read.values(), conv, steps, y)
    return bind(_conv1d_update, arguments, kept, 64 * rows * channels)


def l2_norm(*, x: torch.Tensor, y: torch.Tensor, k_heads: int, k_dim: int, eps: float) -> Launch:
    """Each q and k head of a row over its L2 norm; the columns behind them are copied.

    x, y: f32 [rows, columns]: k_heads heads of q, as many of k, each of k_dim, then the others.
    """
    rows, channels = matrix("x", x)
    _check_heads(channels, k_heads, k_dim)
    disjoint({"y": y}, {"x": x})
    arguments = (
        f32("x", x, (rows, channels)),
        f32("y", y, (rows, channels)),
        rows,
        channels,
        2 * k_heads,
        k_dim,
        float(eps),
    )
    return bind(_l2_norm, arguments, (x, y), 8 * rows * channels)


def _check_heads(channels: int, k_heads: int, k_dim: int) -> None:
    if 2 * k_heads * k_dim > channels:
        raise ValueError(
            f"{k_heads} heads of {k_dim} for q and for k are more than the {channels} columns"
        )
