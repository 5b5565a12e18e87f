"""float32 accumulators of the set's product, stored as they are: bf16 would hide their low bits."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from metpipe_kernels.hopper.dot import product, tile_columns, tile_rows
from metpipe_kernels.hopper.launch import bind
from metpipe_kernels.hopper.overlap import enter

__all__ = ["accumulators"]


@triton.jit
def _accumulators(
    x, w, y, rows, n, k, R: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    SWAP: tl.constexpr,
):  # fmt: skip
    enter()
    row, column = tl.program_id(0) * R, tl.program_id(1) * N
    total = product(x, w, row, column, rows, n, k, R, N, K, EVEN, SWAP)
    r, c = tile_rows(row, R, SWAP), tile_columns(column, N, SWAP)
    tl.store(y + r * n + c, total, mask=(r < rows) & (c < n))


def accumulators(x: torch.Tensor, weight: torch.Tensor, tile: tuple) -> torch.Tensor:
    """float32 [rows, n] of a tile (r, n, k, swap, warps, stages)."""
    (rows, k), n = x.shape, weight.shape[0]
    tile_r, tile_n, tile_k, swap, warps, stages = tile
    y = torch.full((rows, n), float("nan"), dtype=torch.float32, device="cuda")
    arguments = (x, weight, y, rows, n, k, tile_r, tile_n, tile_k, k % tile_k == 0, swap)
    grid = (triton.cdiv(rows, tile_r), triton.cdiv(n, tile_n))
    bind(_accumulators, grid, arguments, warps, stages)()
    torch.cuda.synchronize()
    return y.cpu()
