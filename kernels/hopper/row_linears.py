"""Linears of one row, with what stands before or behind them in the same launch: policy by_rows.

Numerics: of small matrices those of one_row.py, of large ones those of dot.py. Behind a norm, a
sum's elements times their norm's weights are rounded to bf16 and multiplied, and 1 / RMS is applied
to the float32 sums; the norm's own rounding is left out.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix, optional_vector
from .linear import linear as of_any_rows
from .linears import Linears, Norm
from .norm import is_one_plus
from .one_row import bind_one_row, one_row_of
from .stream import bind_stream, stream_of

__all__ = ["add_norm_gate_up_silu", "add_norm_qkv", "linear"]


def linear(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> object:
    """`linear.linear` of one row: x bf16 [1, k], weight [n, k], bias [n] or None, y [1, n].

    A matrix that is not small has the launch of any row count.
    """
    (rows, k), (n, _) = matrix("x", x), matrix("weight", weight)
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias})
    bf16("x", x, (rows, k))
    bf16("weight", weight, (n, k))
    optional_vector("bias", bias, n, x)
    bf16("y", y, (rows, n))
    linears = Linears(x, (weight,), (bias,), (y,))
    if stream := one_row_of(linears):
        return bind_one_row(linears, stream)
    return of_any_rows(x=x, weight=weight, bias=bias, y=y)


def add_norm_qkv(
    *,
    stream: torch.Tensor,
    delta: torch.Tensor,
    norm_weight: torch.Tensor,
    total: torch.Tensor,
    eps: float,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    v_weight: torch.Tensor,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    v_bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    weight_form: str = "plain",
) -> object:
    """`add_rms_norm` into total, then `linear.qkv`; stream, delta, total: bf16 [rows, dim]."""
    outputs = {"q": q, "k": k, "v": v}
    weights = {"q": q_weight, "k": k_weight, "v": v_weight}
    biases = {"q": q_bias, "k": k_bias, "v": v_bias}
    rows, dim = matrix("stream", stream)
    for name, y in outputs.items():
        n = matrix(name, y)[1]
        bf16(name, y, (rows, n))
        bf16(f"{name}_weight", weights[name], (n, dim))
        optional_vector(f"{name}_bias", biases[name], n, stream)
    return _bind(
        stream, delta, norm_weight, total, eps, weight_form, weights, biases, outputs, silu=False
    )


def add_norm_gate_up_silu(
    *,
    stream: torch.Tensor,
    delta: torch.Tensor,
    norm_weight: torch.Tensor,
    total: torch.Tensor,
    eps: float,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    weight_form: str = "plain",
) -> object:
    """`add_rms_norm` into total, then `linear.gate_up_silu`; stream and delta: bf16 [rows, dim]."""
    (rows, dim), inter = matrix("stream", stream), matrix("y", y)[1]
    bf16("weight", weight, (2 * inter, dim))
    bf16("y", y, (rows, inter))
    optional_vector("bias", bias, 2 * inter, stream)
    return _bind(
        stream, delta, norm_weight, total, eps, weight_form, {"weight": weight}, {"bias": bias},
        {"y": y}, silu=True,
    )  # fmt: skip


def _bind(
    stream: torch.Tensor,
    delta: torch.Tensor,
    norm_weight: torch.Tensor,
    total: torch.Tensor,
    eps: float,
    weight_form: str,
    weights: dict[str, torch.Tensor],
    biases: dict[str, torch.Tensor | None],
    outputs: dict[str, torch.Tensor],
    *,
    silu: bool,
) -> object:
    shape = matrix("stream", stream)
    read = {"stream": stream, "delta": delta, "norm_weight": norm_weight, **weights, **biases}
    disjoint({"total": total, **outputs}, read)
    norm = Norm(
        bf16("delta", delta, shape),
        bf16("norm_weight", norm_weight, (shape[1],)),
        bf16("total", total, shape),
        float(eps),
        is_one_plus(weight_form),
    )
    linears = Linears(
        bf16("stream", stream, shape),
        tuple(weights.values()),
        tuple(biases.values()),
        tuple(outputs.values()),
        silu=silu,
        norm=norm,
    )
    return _bound(linears)


def _bound(linears: Linears) -> object:
    """A small matrix without the tensor core, a large one with it."""
    if stream := one_row_of(linears):
        return bind_one_row(linears, stream)
    if stream := stream_of(linears):
        return bind_stream(linears, stream)
    raise ValueError(
        f"the input is {list(linears.x.shape)}: these kernels take a row of a multiple of 64"
    )
