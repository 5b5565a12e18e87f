"""The one place where functions are compiled: the options that keep the bits.

No fast-math flag anywhere. It is said, not left out: an unset `fastmath` is inherited from
whichever caller triggers the first compile. `error_model="numpy"` because a divisor may be zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import config, intp, njit

__all__ = ["KERNEL_SIGNATURE", "device", "kernel"]

KERNEL_SIGNATURE = (intp, intp, intp)
"""(address of the bound arguments, this chunk, number of chunks)"""


def device(function: Callable[..., Any] | None = None, *, parallel: bool = False) -> Any:
    """Compiles a function that kernels call."""
    wrap = njit(fastmath=False, error_model="numpy", cache=True, nogil=True, parallel=parallel)
    return wrap if function is None else wrap(function)


def kernel(function: Callable[[int, int, int], None]) -> Any:
    """Compiles the body of a kernel, `body(arguments, chunk, chunks)`, at its first bind.

    Chunk t of n writes outputs that no other chunk touches, so that n changes no bits.
    """
    return device(function)


def _pin_threading_layer() -> None:
    # Pinned where it can load, since numba falls back silently; see environment.py for the rest.
    try:
        from numba.np.ufunc import omppool  # noqa: F401
    except ImportError:
        return
    config.THREADING_LAYER = "omp"


_pin_threading_layer()
