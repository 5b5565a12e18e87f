"""A linear and the residual add behind it in one launch: y = stream + bf16(x W^T + bias)."""

from __future__ import annotations

import torch
from metpipe_kernels.cpu.check import bf16, disjoint, matrix, optional_vector
from metpipe_kernels.cpu.dot import TILE, dot, dot_1x4
from metpipe_kernels.cpu.jit import device, kernel
from metpipe_kernels.cpu.launch import Launch, bind
from metpipe_kernels.cpu.linear import chunk_start
from metpipe_kernels.cpu.memory import load1, load_i64, store1
from metpipe_kernels.cpu.scalar import add1
from metpipe_kernels.cpu.simd import round_bf16


@device
def _add(product, bias, stream, y, column, at):
    if bias != 0:
        product = add1(product, load1(bias, column))
    stored = round_bf16(product)
    store1(y, at, add1(load1(stream, at), stored))


@kernel
def _product_add(arguments, chunk, chunks):
    x = load_i64(arguments, 0)
    weight = load_i64(arguments, 1)
    bias = load_i64(arguments, 2)
    stream = load_i64(arguments, 3)
    y = load_i64(arguments, 4)
    rows = load_i64(arguments, 5)
    n = load_i64(arguments, 6)
    k = load_i64(arguments, 7)
    low = chunk_start(chunk, chunks, n)
    high = chunk_start(chunk + 1, chunks, n)
    whole = low + (high - low) // TILE * TILE
    for row in range(rows):
        for column in range(low, whole, TILE):
            products = dot_1x4(weight + 2 * column * k, x + 2 * row * k, k)
            for i in range(TILE):
                _add(products[i], bias, stream, y, column + i, row * n + column + i)
        for column in range(whole, high):
            product = dot(weight + 2 * column * k, x + 2 * row * k, k)
            _add(product, bias, stream, y, column, row * n + column)


def product_add(
    *,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stream: torch.Tensor,
    y: torch.Tensor,
) -> Launch:
    """All bf16: x [rows, k], weight [n, k], bias [n] or None, stream and y [rows, n]."""
    rows, k = matrix("x", x)
    n, _ = matrix("weight", weight)
    disjoint({"y": y}, {"x": x, "weight": weight, "bias": bias, "stream": stream})
    arguments = (
        bf16("x", x, (rows, k)),
        bf16("weight", weight, (n, k)),
        optional_vector("bias", bias, n),
        bf16("stream", stream, (rows, n)),
        bf16("y", y, (rows, n)),
        rows,
        n,
        k,
    )
    return bind(_product_add, arguments, (x, weight, bias, stream, y), data_bytes=2 * n * k)
