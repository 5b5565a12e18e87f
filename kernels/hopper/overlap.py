"""Launches that overlap: the next kernel starts while this one ends (dependent launch).

A kernel may read what no launch writes (weights, a step's inputs), and waits until the one before
has finished (`wait`) for anything else: what is computed is in the order of launches without
overlap. A kernel that leaves most of the GPU idle lets the next one start at once (`release`, or
`enter`); one that fills it does so when its products are done: what waits on a multiprocessor takes
room there, and programs that start early crowd where there is some.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from .jit import device

__all__ = ["ask", "enter", "release", "wait"]

INTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)
LINE_BYTES = tl.constexpr(128)


@device
def release():
    """Let the next launch start."""
    if not INTERPRETED:
        cuda.gdc_launch_dependents()


@device
def wait():
    """Return when the launch before has finished, its writes visible."""
    if not INTERPRETED:
        cuda.gdc_wait()


@device
def enter():
    """For a small kernel: the next one may start now, this one's work begins."""
    release()
    wait()


@device
def ask(weights, num_bytes, LANES: tl.constexpr):
    """Ask for weights, which no launch writes, before the wait: into the L2 cache, no further."""
    if not INTERPRETED:
        begin = weights.to(tl.int64)
        for start in range(0, num_bytes, LANES * LINE_BYTES):
            at = start + tl.arange(0, LANES) * LINE_BYTES
            # Past the end, the last line once more.
            tl.inline_asm_elementwise(
                "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
                "=r,l",
                [begin + tl.minimum(at, num_bytes - 1)],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
