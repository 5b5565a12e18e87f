"""RMS norms: whole rows, heads, and fused with the residual add before.

Numerics: sum of squares in float32 by lanes of even and odd elements and the fixed tree, the last
dim % 32 squares one by one; mean = sum / dim. A plain weight (Hugging Face's Llama family): the
value x / sqrt(mean + eps) is rounded to bf16, then multiplied by the weight and rounded again. A
one_plus weight (Qwen3.5): x / sqrt(mean + eps) times 1 + weight in float32, rounded once.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix
from .jit import device, kernel
from .launch import Launch, bind
from .memory import (
    even,
    load1,
    load16,
    load_f32,
    load_f32x16,
    load_i64,
    load_number,
    odd,
    store1,
    store16,
)
from .scalar import add1, normed1, normed_one_plus1, rsqrt
from .simd import LANES, add, div, fma, hsum, like, splat, zero

__all__ = ["add_rms_norm", "head_norm", "rms_norm"]

WEIGHT_FORMS = ("plain", "one_plus")


@device
def sum_of_squares(x, dim):
    """Sum of squares of bf16 elements 0..dim-1, in float32."""
    a = zero()
    b = zero()
    whole = dim - dim % 32
    for i in range(0, whole, 32):
        e = even(x, i)
        o = odd(x, i)
        a = fma(e, e, a)
        b = fma(o, o, b)
    total = hsum(add(a, b))
    for i in range(whole, dim):
        total = fma(load1(x, i), load1(x, i), total)
    return total


@device
def sum_of_squares_f32(x, dim):
    """Sum of squares of float32 elements 0..dim-1, sixteen lanes a step in turn to two sums."""
    a = zero()
    b = zero()
    whole = dim - dim % 32
    for i in range(0, whole, 32):
        first = load_f32x16(x, i)
        second = load_f32x16(x, i + LANES)
        a = fma(first, first, a)
        b = fma(second, second, b)
    total = hsum(add(a, b))
    for i in range(whole, dim):
        total = fma(load_f32(x, i), load_f32(x, i), total)
    return total


@device
def inverse_rms(x, dim, eps):
    """1 / sqrt(mean square of bf16 elements 0..dim-1, plus eps), in float32."""
    total = sum_of_squares(x, dim)
    return rsqrt(add(div(total, like(total, dim)), eps))


@device
def norm_row(x, weight, y, dim, eps):
    """One row (or head), plain weight: y = bf16(bf16(x / rms) * weight)."""
    inverse = inverse_rms(x, dim, eps)
    lanes = splat(inverse)
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        store16(y, i, normed1(load16(x, i), lanes, load16(weight, i)))
    for i in range(whole, dim):
        store1(y, i, normed1(load1(x, i), inverse, load1(weight, i)))


@device
def one_plus_row(x, weight, y, dim, eps):
    """One row (or head), one_plus weight: y = bf16(x / rms * (1 + weight))."""
    inverse = inverse_rms(x, dim, eps)
    lanes = splat(inverse)
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        store16(y, i, normed_one_plus1(load16(x, i), lanes, load16(weight, i)))
    for i in range(whole, dim):
        store1(y, i, normed_one_plus1(load1(x, i), inverse, load1(weight, i)))


@device
def norm_formed_row(x, weight, y, dim, eps, one_plus):
    """`norm_row`, or `one_plus_row` where `one_plus` is not 0."""
    if one_plus != 0:
        one_plus_row(x, weight, y, dim, eps)
    else:
        norm_row(x, weight, y, dim, eps)


@device
def add_row(a, b, y, dim):
    """One row: y = bf16(a + b)."""
    whole = dim - dim % LANES
    for i in range(0, whole, LANES):
        store16(y, i, add1(load16(a, i), load16(b, i)))
    for i in range(whole, dim):
        store1(y, i, add1(load1(a, i), load1(b, i)))


@kernel
def _rms_norm(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    weight = load_i64(arguments, 1)
    y = load_i64(arguments, 2)
    rows = load_i64(arguments, 3)
    dim = load_i64(arguments, 4)
    eps = load_number(arguments, 5)
    one_plus = load_i64(arguments, 6)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 2 * row * dim
        norm_formed_row(x + at, weight, y + at, dim, eps, one_plus)


@kernel
def _add_rms_norm(arguments, chunk, chunks):
    stream = load_i64(arguments, 0)
    delta = load_i64(arguments, 1)
    weight = load_i64(arguments, 2)
    total = load_i64(arguments, 3)
    y = load_i64(arguments, 4)
    rows = load_i64(arguments, 5)
    dim = load_i64(arguments, 6)
    eps = load_number(arguments, 7)
    one_plus = load_i64(arguments, 8)
    for row in range(chunk * rows // chunks, (chunk + 1) * rows // chunks):
        at = 2 * row * dim
        add_row(stream + at, delta + at, total + at, dim)
        norm_formed_row(total + at, weight, y + at, dim, eps, one_plus)


def is_one_plus(weight_form: str) -> int:
    """Whether the form of a norm's weight is 1 + w.

    Raises:
        ValueError: this set has no such form.
    """
    if weight_form not in WEIGHT_FORMS:
        known = ", ".join(WEIGHT_FORMS)
        raise ValueError(f"weight_form is {weight_form!r}: this kernel set has {known}")
    return int(weight_form == "one_plus")


def rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> Launch:
    """The norm of each row of x [rows, dim] times weight [dim], into y; all bf16.

    weight_form: plain, or one_plus: times 1 + weight.
    """
    rows, dim = matrix("x", x)
    return _bind_norm(x, weight, y, eps, rows, dim, weight_form)


def head_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> Launch:
    """`rms_norm` of each head of x [rows, heads * head_dim], weight [head_dim], into y; bf16."""
    rows, dim = matrix("x", x)
    head_dim = weight.shape[-1]
    if dim % head_dim:
        raise ValueError(f"x has {dim} columns: not whole heads of weight's {head_dim}")
    return _bind_norm(x, weight, y, eps, rows * (dim // head_dim), head_dim, weight_form)


def _bind_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    rows: int,
    dim: int,
    weight_form: str,
) -> Launch:
    disjoint({"y": y}, {"x": x, "weight": weight})
    shape = tuple(x.shape)
    arguments = (
        bf16("x", x, shape),
        bf16("weight", weight, (dim,)),
        bf16("y", y, shape),
        rows,
        dim,
        float(eps),
        is_one_plus(weight_form),
    )
    return bind(_rms_norm, arguments, (x, weight, y), 2 * rows * dim)


def add_rms_norm(
    *,
    stream: torch.Tensor,
    delta: torch.Tensor,
    weight: torch.Tensor,
    total: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> Launch:
    """`residual_add` into total, then `rms_norm` of the ROUNDED total into y; bf16 [rows, dim]."""
    rows, dim = matrix("stream", stream)
    disjoint({"total": total, "y": y}, {"stream": stream, "delta": delta, "weight": weight})
    arguments = (
        bf16("stream", stream, (rows, dim)),
        bf16("delta", delta, (rows, dim)),
        bf16("weight", weight, (dim,)),
        bf16("total", total, (rows, dim)),
        bf16("y", y, (rows, dim)),
        rows,
        dim,
        float(eps),
        is_one_plus(weight_form),
    )
    return bind(_add_rms_norm, arguments, (stream, delta, weight, total, y), 4 * rows * dim)
