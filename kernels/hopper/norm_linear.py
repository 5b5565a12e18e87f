"""A residual add, the RMS norm after it and the linears that read it, in one launch of few rows.

Numerics: not those of the ops one by one. A sum's elements times their norm's weights are rounded
to bf16 and multiplied; 1 / RMS is applied to the float32 products, so that no product waits for
it. The norm's own rounding is left out.
"""

from __future__ import annotations

import torch

from .check import bf16, disjoint, matrix, optional_vector
from .norm import is_one_plus
from .stream import Linears, Norm, bind_stream, stream_of

__all__ = ["add_norm_gate_up_silu", "add_norm_qkv"]


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
    streamed = stream_of(linears)
    if streamed is None:
        raise ValueError(
            f"stream is {list(shape)}: this kernel streams at most 16 rows, of a multiple of 64"
        )
    return bind_stream(linears, streamed)
