"""Times between two events on a GPU, and the bandwidth of a kernel that only reads."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

__all__ = ["measured", "read_bandwidth"]

READ_BYTES = 8 << 30


@triton.jit
def _read(source, found, each, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * each
    total = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, each, BLOCK):
        total = total ^ tl.load(source + start + at + tl.arange(0, BLOCK))
    tl.store(found + tl.program_id(0), tl.max(total))


def read_bandwidth() -> float:
    """Bytes a second of a kernel that only reads: the best of several grids, each a median."""
    source = torch.empty(READ_BYTES // 4, dtype=torch.int32, device="cuda")
    source.view(torch.float32).normal_()
    best = 0.0
    for programs in (132 * 8, 132 * 16, 132 * 32, 132 * 64):
        for block, warps in ((2048, 4), (4096, 8), (8192, 8)):
            found = torch.empty(programs, dtype=torch.int32, device="cuda")
            each = source.numel() // programs // block * block
            arguments = (source, found, each, block)
            call = partial(_read[(programs,)], *arguments, num_warps=warps)
            seconds = statistics.median(measured(call, 1) for _ in range(5))
            best = max(best, 4 * each * programs / seconds)
    return best


def measured(call: Callable[[], object], times: int) -> float:
    """Seconds of one of `times` calls, between two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times
