"""Linear layers over bf16 weights [out, k], and the fused forms that share their product.

Numerics: the product of dot.py in float32, bias added in float32, one rounding to bf16. A residual
is added to the ROUNDED value and rounded again; SiLU takes the rounded gate and up.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .check import bf16, disjoint, matrix, optional_vector
from .dot import product, tile_columns, tile_rows
from .jit import device, kernel
from .launch import bind
from .linears import Linears
from .overlap import release, wait
from .scalar import round_bf16, silu_mul1
from .stream import bind_stream, stream_of
from .tiles import tile_for

__all__ = ["gate_up_silu", "linear", "linear_add", "qkv"]


@device
def _with_bias(total, bias, c, n, HAS_BIAS: tl.constexpr):
    if HAS_BIAS:
        total = total + tl.load(bias + c, mask=c < n, other=0.0).to(tl.float32)
    return total


@kernel
def _linear(
    x, w, bias, residual, y, rows, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * R, tl.program_id(1) * N
    wait()
    total = product(x, w, row, column, rows, n, k, R, N, K, EVEN, SWAP)
    release()
    r, c = tile_rows(row, R, SWAP), tile_columns(column, N, SWAP)
    here = (r < rows) & (c < n)
    at = r.to(tl.int64) * n + c
    total = _with_bias(total, bias, c, n, HAS_BIAS)
    if ADDS:
        added = tl.load(residual + at, mask=here, other=0.0).to(tl.float32)
        total = added + round_bf16(total)
    tl.store(y + at, total.to(tl.bfloat16), mask=here)


@kernel
def _three_linears(
    x, w, to_k, to_v, q_bias, k_bias, v_bias, q_out, k_out, v_out, rows, q_n, k_n, v_n, k,
    R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, SWAP: tl.constexpr,
    Q_BIAS: tl.constexpr, K_BIAS: tl.constexpr, V_BIAS: tl.constexpr,
):  # fmt: skip
    """W is q's matrix; to_k and to_v lead from it to the others', in elements."""
    row, tile = tl.program_id(0) * R, tl.program_id(1)
    q_tiles, k_tiles = tl.cdiv(q_n, N), tl.cdiv(k_n, N)
    is_q, is_k = tile < q_tiles, tile < q_tiles + k_tiles
    first = tl.where(is_q, tile, tl.where(is_k, tile - q_tiles, tile - q_tiles - k_tiles)) * N
    n = tl.where(is_q, q_n, tl.where(is_k, k_n, v_n))
    shift = tl.where(is_q, 0, tl.where(is_k, to_k, to_v))
    shift = tl.multiple_of(shift, 8)
    wait()
    total = product(x, w + shift, row, first, rows, n, k, R, N, K, EVEN, SWAP)
    release()
    r, c = tile_rows(row, R, SWAP), tile_columns(first, N, SWAP)
    here = (r < rows) & (c < n)
    at = r.to(tl.int64) * n + c
    if is_q:
        total = _with_bias(total, q_bias, c, n, Q_BIAS)
        tl.store(q_out + at, total.to(tl.bfloat16), mask=here)
    elif is_k:
        total = _with_bias(total, k_bias, c, n, K_BIAS)
        tl.store(k_out + at, total.to(tl.bfloat16), mask=here)
    else:
        total = _with_bias(total, v_bias, c, n, V_BIAS)
        tl.store(v_out + at, total.to(tl.bfloat16), mask=here)


@kernel
def _gate_up_silu(
    x, w, bias, y, rows, inter, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * R, tl.program_id(1) * N
    wait()
    gate, up = two_products(x, w, row, column, rows, inter, k, R, N, K, EVEN, SWAP)
    release()
    r, c = tile_rows(row, R, SWAP), tile_columns(column, N, SWAP)
    gate = _with_bias(gate, bias, c, inter, HAS_BIAS)
    up = _with_bias(up, bias + inter, c, inter, HAS_BIAS)
    value = silu_mul1(round_bf16(gate), round_bf16(up))
    at = r.to(tl.int64) * inter + c
    tl.store(y + at, value.to(tl.bfloat16), mask=(r < rows) & (c < inter))


@device
def two_products(
    x, w, row, column, rows, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """`product` with w's first n rows and with its next n, in one pass over x."""
    r = tile_rows(row, R, SWAP)
    return two_products_of(x + r.to(tl.int64) * k, r < rows, w, column, n, k, R, N, K, EVEN, SWAP)


@device
def two_products_of(
    x_rows, held, w, column, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    EVEN: tl.constexpr, SWAP: tl.constexpr,
):  # fmt: skip
    """`two_products` of the rows at `x_rows`, as `product_of`."""
    i = tl.arange(0, K)
    second = n.to(tl.int64) * k
    if SWAP:
        c = tl.minimum(column + tl.arange(0, N), n - 1)[:, None]
        x_at = x_rows + i[:, None]
        w_at = w + c.to(tl.int64) * k + i[None, :]
        one = tl.zeros((N, R), tl.float32)
        other = tl.zeros((N, R), tl.float32)
        for start in range(0, k, K):
            if EVEN:
                a = tl.load(w_at)
                z = tl.load(w_at + second)
                b = tl.load(x_at, mask=held, other=0.0)
            else:
                a = tl.load(w_at, mask=(start + i)[None, :] < k, other=0.0)
                z = tl.load(w_at + second, mask=(start + i)[None, :] < k, other=0.0)
                b = tl.load(x_at, mask=held & ((start + i)[:, None] < k), other=0.0)
            one = tl.dot(a, b, one)
            other = tl.dot(z, b, other)
            x_at += K
            w_at += K
    else:
        c = tl.minimum(column + tl.arange(0, N), n - 1)[None, :]
        x_at = x_rows + i[None, :]
        w_at = w + c.to(tl.int64) * k + i[:, None]
        one = tl.zeros((R, N), tl.float32)
        other = tl.zeros((R, N), tl.float32)
        for start in range(0, k, K):
            if EVEN:
                a = tl.load(x_at, mask=held, other=0.0)
                b = tl.load(w_at)
                z = tl.load(w_at + second)
            else:
                a = tl.load(x_at, mask=held & ((start + i)[None, :] < k), other=0.0)
                b = tl.load(w_at, mask=(start + i)[:, None] < k, other=0.0)
                z = tl.load(w_at + second, mask=(start + i)[:, None] < k, other=0.0)
            one = tl.dot(a, b, one)
            other = tl.dot(a, z, other)
            x_at += K
            w_at += K
    return one, other


def linear(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> object:
    """Writes x W^T (+ bias) to y [rows, n]: x [rows, k], weight [n, k], bias [n] or None; bf16."""
    return _bind_linear(x, weight, bias, None, y)


def linear_add(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor,
    y: torch.Tensor,
) -> object:
    """`linear`, then `residual_add`: y = stream + bf16(x W^T (+ bias)), rounded again."""
    return _bind_linear(x, weight, bias, stream, y)


def _bind_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor | None,
    y: torch.Tensor,
) -> object:
    rows, k = matrix("x", x)
    n, _ = matrix("weight", weight)
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias, "stream": stream})
    tensors = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (n, k)),
        optional_vector("bias", bias, n, x),
        x if stream is None else bf16("stream", stream, (rows, n)),
        bf16("y", y, (rows, n)),
    )
    linears = Linears(x, (weight,), (bias,), (y,), residual=stream)
    if streamed := stream_of(linears):
        return bind_stream(linears, streamed)
    tile = tile_for(rows, n, k)
    arguments = (
        *tensors,
        rows,
        n,
        k,
        *tile.constants,
        k % tile.k == 0,
        tile.swap,
        bias is not None,
        stream is not None,
    )
    grid = (triton.cdiv(rows, tile.r), triton.cdiv(n, tile.n))
    return bind(_linear, grid, arguments, warps=tile.warps, stages=tile.stages)


def qkv(
    *,
    x: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    v_weight: torch.Tensor,
    q_bias: torch.Tensor | None,
    k_bias: torch.Tensor | None,
    v_bias: torch.Tensor | None,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
) -> object:
    """Three linears of one x [rows, k] in one launch: q, k, v [rows, their n]."""
    rows, dim = matrix("x", x)
    sizes = [matrix(name, y)[1] for name, y in (("q", q), ("k", k), ("v", v))]
    read = {"x": x, "q_weight": q_weight, "k_weight": k_weight, "v_weight": v_weight}
    disjoint({"q": q, "k": k, "v": v}, {**read, "q_bias": q_bias, "k_bias": k_bias})
    weights = [
        bf16(name, read[name], (n, dim))
        for name, n in zip(("q_weight", "k_weight", "v_weight"), sizes, strict=True)
    ]
    tensors = (
        bf16("x", x, (rows, dim)),
        weights[0],
        *(_elements_between(weights[0], other) for other in weights[1:]),
        optional_vector("q_bias", q_bias, sizes[0], x),
        optional_vector("k_bias", k_bias, sizes[1], x),
        optional_vector("v_bias", v_bias, sizes[2], x),
        bf16("q", q, (rows, sizes[0])),
        bf16("k", k, (rows, sizes[1])),
        bf16("v", v, (rows, sizes[2])),
    )
    linears = Linears(x, tuple(weights), (q_bias, k_bias, v_bias), (q, k, v))
    if streamed := stream_of(linears):
        return bind_stream(linears, streamed)
    tile = tile_for(rows, sum(sizes), dim)
    arguments = (
        *tensors,
        rows,
        *sizes,
        dim,
        *tile.constants,
        dim % tile.k == 0,
        tile.swap,
        q_bias is not None,
        k_bias is not None,
        v_bias is not None,
    )
    grid = (triton.cdiv(rows, tile.r), sum(triton.cdiv(n, tile.n) for n in sizes))
    return bind(_three_linears, grid, arguments, tile.warps, tile.stages, kept=weights)


def _elements_between(a: torch.Tensor, b: torch.Tensor) -> int:
    """From a to b, both bf16 and whole vectors of sixteen bytes apart."""
    between = b.data_ptr() - a.data_ptr()
    if between % 16:
        raise ValueError("the matrices of q, k and v must start at multiples of 16 bytes")
    return between // 2


def gate_up_silu(
    *, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, y: torch.Tensor
) -> object:
    """`linear` to gate||up, then `silu_mul`: x [rows, k], weight [2 inter, k], y [rows, inter].

    Gate and up are rounded to bf16 first, as the store between the two kernels would have done.
    """
    rows, k = matrix("x", x)
    inter = y.shape[-1]
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias})
    tensors = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (2 * inter, k)),
        optional_vector("bias", bias, 2 * inter, x),
        bf16("y", y, (rows, inter)),
    )
    linears = Linears(x, (weight,), (bias,), (y,), silu=True)
    if streamed := stream_of(linears):
        return bind_stream(linears, streamed)
    tile = tile_for(rows, inter, k, weights=2)
    arguments = (
        *tensors,
        rows,
        inter,
        k,
        *tile.constants,
        k % tile.k == 0,
        tile.swap,
        bias is not None,
    )
    grid = (triton.cdiv(rows, tile.r), triton.cdiv(inter, tile.n))
    return bind(_gate_up_silu, grid, arguments, warps=tile.warps, stages=tile.stages)
