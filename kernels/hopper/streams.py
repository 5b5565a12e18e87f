"""How a linear's weights stream (stream.py): a matter of speed alone, since it changes no bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from .sums import power_of_two

__all__ = ["MOST_ROWS", "Stream", "one_row_stream", "programs", "stream_for"]

MOST_ROWS = 16
LEAST_OUTPUTS = 8
"""Outputs of a program of a small matrix: fewer would be loads without work."""
MOST_OUTPUTS = 65536
"""Those of a vocabulary keep memory busy as they are."""
STEPS = (512, 256, 128, 64)
STAGE_VALUES = 64 * 256
"""Values of a stage's weights."""
UNDER_WAY = 60 << 10
"""Bytes of a multiprocessor's weights that are asked for ahead."""
MOST_BYTES, HALF_BYTES = 220 << 10, 120 << 10
"""Shared memory of a multiprocessor's stages; so much that the next launch's fit beside them."""
SMALL_BYTES = 100 << 10
"""A multiprocessor's share of a matrix that is under way as a whole, or nearly."""
LEAST_STAGES, MOST_STAGES = 3, 8
MOST_SHARE = 128
"""Outputs of a program of one row: their sums are in registers."""


@dataclass(frozen=True, slots=True)
class Stream:
    """Outputs that a program has room for, its step through k, its stages; which instruction."""

    outputs: int
    k: int
    stages: int
    warpgroup: bool
    small: bool = False
    """nearly all of the matrix is under way at once"""

    @property
    def warps(self) -> int:
        """Sixteen outputs are a warp's."""
        return self.outputs // 16


def stream_for(rows: int, n: int, k: int, *, paired: bool) -> Stream | None:
    """How a few rows stream through n outputs of k, or pairs of them.

    A multiprocessor's share of the outputs is one program's, or two programs', and enough of it
    is under way to keep memory busy, or all of it. The steps are the best of a grid on an H200.
    """
    share = -(-n // multiprocessors())
    pairs = 2 if paired else 1
    small = 2 * share * k * pairs <= SMALL_BYTES
    room, most = (HALF_BYTES, 4) if small else (MOST_BYTES, MOST_STAGES)
    outputs = next((most for most in (16, 32, 64) if share <= most), 64 if share <= 128 else 128)
    programs_each = -(-share // outputs)
    wide = outputs * pairs

    def fitting(step: int) -> int:
        """Stages that there is room for."""
        return room // (2 * (wide + power_of_two(rows, 8)) * step * programs_each)

    whole = (step for step in STEPS if k % step == 0 and step * wide <= STAGE_VALUES)
    step = next((step for step in whole if fitting(step) >= LEAST_STAGES), None)
    if n > MOST_OUTPUTS or programs_each > 2 or step is None:
        return None
    asked = 2 * share * step * pairs
    stages = min(k // step, max(2, -(-UNDER_WAY // asked))) + 1
    return Stream(outputs, step, min(stages, most, fitting(step)), outputs >= 64, small)


def one_row_stream(n: int, k: int, *, paired: bool) -> Stream | None:
    """How one row passes n outputs of k, or pairs of them, in one_row.py; None where it is slower.

    It is faster for small matrices, all of which are under way at once; k is in whole steps of 64.
    """
    share = -(-n // min(multiprocessors(), max(1, n // LEAST_OUTPUTS)))
    pairs = 2 if paired else 1
    if 2 * share * k * pairs > SMALL_BYTES or share > MOST_SHARE or k % STEPS[-1]:
        return None
    outputs = power_of_two(share, LEAST_OUTPUTS)
    step = next(one for one in STEPS if one <= 256 and k % one == 0)
    while step > STEPS[-1] and step * outputs * pairs > STAGE_VALUES:
        step //= 2
    fitting = (HALF_BYTES - 2 * k) // (2 * outputs * step * pairs)
    return Stream(outputs, step, max(2, min(k // step + 1, fitting)), False, True)


def programs(n: int, most: int) -> int:
    """As many as there are multiprocessors, or several times that; each with at most `most`."""
    here = multiprocessors()
    return max(1, min(here * -(-n // (here * most)), n // LEAST_OUTPUTS))


@cache
def multiprocessors() -> int:
    """Of the GPU that runs the kernels."""
    return int(torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count)
