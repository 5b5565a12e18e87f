"""RMS norms: whole rows, heads, and fused with the residual add before.

Numerics: squares are summed by lanes, each lane its own elements in order by fma, then over the
lanes (sums.py); mean = sum / dim. A plain weight (Hugging Face's Llama family): the value
x / sqrt(mean + eps) is rounded to bf16, then multiplied by the weight and rounded again. A one_plus
weight (Qwen3.5): x / sqrt(mean + eps) times 1 + weight in float32, rounded once.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import bf16, disjoint, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import release, wait
from .scalar import normed_formed1, round_bf16, rsqrt
from .sums import lanes_for, warps_of

__all__ = ["add_rms_norm", "head_norm", "is_one_plus", "rms_norm"]

FORMS = ("plain", "one_plus")


def is_one_plus(weight_form: str) -> bool:
    """Whether the weight is what 1 lacks.

    Raises:
        ValueError: the form is neither of the two.
    """
    if weight_form not in FORMS:
        raise ValueError(f"weight_form is {weight_form!r}: it must be one of {', '.join(FORMS)}")
    return weight_form == "one_plus"


@device
def inverse_rms(x, eps, DIM: tl.constexpr, LANES: tl.constexpr):
    """1 / sqrt(mean of squares + eps) of DIM bf16 elements at x."""
    lane = tl.arange(0, LANES)
    squares = tl.zeros((LANES,), tl.float32)
    for start in tl.static_range(0, DIM, LANES):
        value = tl.load(x + start + lane, mask=start + lane < DIM, other=0.0).to(tl.float32)
        squares = tl.fma(value, value, squares)
    return rsqrt(tl.div_rn(tl.sum(squares), DIM * 1.0) + eps)


@device
def _inverse_rms(values, eps, DIM: tl.constexpr, LANES: tl.constexpr):
    """The same of elements in registers: a tuple of blocks, zeros behind the last."""
    squares = tl.zeros((LANES,), tl.float32)
    for part in tl.static_range(len(values)):
        squares = tl.fma(values[part], values[part], squares)
    return rsqrt(tl.div_rn(tl.sum(squares), DIM * 1.0) + eps)


@device
def _loaded(x, DIM: tl.constexpr, LANES: tl.constexpr):
    """DIM bf16 elements at x as float32: a tuple of blocks."""
    lane = tl.arange(0, LANES)
    found = ()
    for start in tl.static_range(0, DIM, LANES):
        value = tl.load(x + start + lane, mask=start + lane < DIM, other=0.0).to(tl.float32)
        found = found + (value,)
    return found


@device
def _put(y, values, inverse, weights, DIM: tl.constexpr, LANES: tl.constexpr,
         ONE_PLUS: tl.constexpr):  # fmt: skip
    lane = tl.arange(0, LANES)
    for part in tl.static_range(len(values)):
        i = part * LANES + lane
        value = normed_formed1(values[part], inverse, weights[part], ONE_PLUS)
        tl.store(y + i, value.to(tl.bfloat16), mask=i < DIM)


@kernel
def _rms_norm(
    x, weight, y, eps, HEADS: tl.constexpr, DIM: tl.constexpr, LANES: tl.constexpr,
    ONE_PLUS: tl.constexpr,
):  # fmt: skip
    release()
    weights = _loaded(weight, DIM, LANES)
    wait()
    at = (tl.program_id(0).to(tl.int64) * HEADS + tl.program_id(1)) * DIM
    values = _loaded(x + at, DIM, LANES)
    inverse = _inverse_rms(values, eps, DIM, LANES)
    _put(y + at, values, inverse, weights, DIM, LANES, ONE_PLUS)


@kernel
def _add_rms_norm(
    stream, delta, weight, total, y, eps, DIM: tl.constexpr, LANES: tl.constexpr,
    ONE_PLUS: tl.constexpr,
):  # fmt: skip
    release()
    weights = _loaded(weight, DIM, LANES)
    wait()
    at = tl.program_id(0).to(tl.int64) * DIM
    lane = tl.arange(0, LANES)
    streams, deltas = _loaded(stream + at, DIM, LANES), _loaded(delta + at, DIM, LANES)
    values = ()
    for part in tl.static_range(len(streams)):
        value = round_bf16(streams[part] + deltas[part])
        i = part * LANES + lane
        tl.store(total + at + i, value.to(tl.bfloat16), mask=i < DIM)
        values = values + (value,)
    inverse = _inverse_rms(values, eps, DIM, LANES)
    _put(y + at, values, inverse, weights, DIM, LANES, ONE_PLUS)


def rms_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> object:
    """The norm of each row of x [rows, dim], times weight [dim], into y; all bf16.

    weight_form: plain, or one_plus: times 1 + weight.
    """
    rows, dim = matrix("x", x)
    return _bind_norm(x, weight, y, eps, rows, 1, dim, weight_form)


def head_norm(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> object:
    """`rms_norm` of each head of x [rows, heads * head_dim], weight [head_dim], into y; bf16."""
    rows, dim = matrix("x", x)
    head_dim = weight.shape[-1]
    if dim % head_dim:
        raise ValueError(f"x has {dim} columns: not whole heads of weight's {head_dim}")
    return _bind_norm(x, weight, y, eps, rows, dim // head_dim, head_dim, weight_form)


def _bind_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    rows: int,
    heads: int,
    dim: int,
    weight_form: str,
) -> object:
    disjoint({"y": y}, {"x": x, "weight": weight})
    shape, lanes = tuple(x.shape), lanes_for(dim)
    arguments = (
        bf16("x", x, shape),
        bf16("weight", weight, (dim,)),
        bf16("y", y, shape),
        float(eps),
        heads,
        dim,
        lanes,
        is_one_plus(weight_form),
    )
    return bind(_rms_norm, (rows, heads), arguments, warps=warps_of(lanes))


def add_rms_norm(
    *,
    stream: torch.Tensor,
    delta: torch.Tensor,
    weight: torch.Tensor,
    total: torch.Tensor,
    y: torch.Tensor,
    eps: float,
    weight_form: str = "plain",
) -> object:
    """`residual_add` into total, then `rms_norm` of the ROUNDED total into y; bf16 [rows, dim]."""
    rows, dim = matrix("stream", stream)
    disjoint({"total": total, "y": y}, {"stream": stream, "delta": delta, "weight": weight})
    lanes = lanes_for(dim)
    arguments = (
        bf16("stream", stream, (rows, dim)),
        bf16("delta", delta, (rows, dim)),
        bf16("weight", weight, (dim,)),
        bf16("total", total, (rows, dim)),
        bf16("y", y, (rows, dim)),
        float(eps),
        dim,
        lanes,
        is_one_plus(weight_form),
    )
    return bind(_add_rms_norm, (rows,), arguments, warps=warps_of(lanes))
