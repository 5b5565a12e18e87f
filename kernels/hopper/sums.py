"""Sums whose order depends on the summed length only.

A sum over a block follows the block's layout over threads, and Triton chooses that by what else
the kernel does. So either the block has exactly as many elements as the kernel has threads, which
leaves one layout only, or the tree is written out.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .jit import device

__all__ = ["LEAST_LANES", "lanes_for", "power_of_two", "tree_sum", "warps_of"]

MOST_LANES, LEAST_LANES = 1024, 32
PER_LANE = 4
MOST_LEVELS = tl.constexpr(12)


def power_of_two(size: int, least: int = 1) -> int:
    """The least power of two that is neither below `size` nor below `least`."""
    return int(max(triton.next_power_of_2(size), least))


def lanes_for(dim: int) -> int:
    """Lanes (and threads) of a sum over `dim` elements."""
    return min(power_of_two(dim // PER_LANE, LEAST_LANES), MOST_LANES)


def warps_of(lanes: int) -> int:
    """Warps of a kernel with one thread a lane."""
    return lanes // 32


@device
def tree_sum(x):
    """The sum of a block of a power of two: neighbours, then neighbouring pairs, and so on."""
    for _ in tl.static_range(MOST_LEVELS):
        if x.shape[0] > 1:
            even, odd = tl.split(tl.reshape(x, (x.shape[0] // 2, 2)))
            x = even + odd
    return tl.sum(x)
