"""What must hold in the process for the bits to be the set's own."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numba
import numpy as np
import torch

from .check import f32
from .jit import kernel
from .launch import PARALLEL_BYTES, bind
from .memory import load_f32, load_i64, store_f32
from .simd import mul

__all__ = ["Environment", "check_environment"]

logger = logging.getLogger(__name__)

SMALLEST_NORMAL = np.float32(2.0**-126)
HALF = np.float32(0.5)

_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Environment:
    """How kernels run in this process."""

    threading_layer: str
    threads: int


@kernel
def _halve(arguments, chunk, chunks):
    values = load_i64(arguments, 0)
    store_f32(values, chunk, mul(load_f32(values, chunk), HALF))


def check_environment() -> Environment:
    """Checks that no thread flushes subnormals to zero, and which threading layer runs.

    Warns once if the layer is not OpenMP: results are the same, launches are slower.

    Raises:
        RuntimeError: a thread flushes subnormals to zero, so that its rows would differ.
    """
    threads = numba.get_num_threads()
    values = torch.full((threads,), float(SMALLEST_NORMAL))
    bind(_halve, (f32("values", values, (threads,)),), values, PARALLEL_BYTES)()
    # NOTE: compared as integers, since this thread might flush as well.
    if not bool((values.view(torch.int32) == 1 << 22).all()):
        raise RuntimeError(
            "subnormal numbers are flushed to zero in this process, so that kernels give other "
            "bits: undo torch.set_flush_denormal(True), and load no library built with -ffast-math"
        )
    layer = numba.threading_layer() if threads > 1 else "none"
    if layer not in ("omp", "none") and layer not in _warned:
        _warned.add(layer)
        logger.warning(
            "numba runs on the threading layer %s, not omp: launches of two threads take about "
            "ten times as long; install libgomp (the GNU OpenMP runtime)",
            layer,
        )
    return Environment(layer, threads)
