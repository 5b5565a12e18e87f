"""A bound launch: a kernel compiled for its arguments, their addresses, and its grid.

Compiled at binding, so that a step only launches. Nothing is allocated in a launch, so that a CUDA
graph can hold it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from .check import DEVICE

__all__ = ["Launch", "bind", "in_turn"]

Grid = tuple[int, int, int]
OPTIONS = {"enable_fp_fusion": False, "launch_pdl": True}
"""See jit.py: no contraction that is not written; overlap.py: launches that overlap."""


class Launch:
    """Launches what was bound, on the current stream: no argument, any number of times."""

    __slots__ = ("_arguments", "_compiled", "_device", "_grid", "_kept", "_stream", "kernel")

    def __init__(
        self, compiled: Any, grid: Grid, arguments: Sequence[Any], kernel: str, kept: object
    ):
        self._compiled, self._grid, self.kernel = compiled, grid, kernel
        self._kept = (arguments, kept)
        self._arguments = [_address(value) for value in arguments]
        self._stream = triton.runtime.driver.active.get_current_stream
        self._device = triton.runtime.driver.active.get_current_device()

    def __call__(self) -> None:
        compiled = self._compiled
        compiled.run(
            *self._grid, self._stream(self._device), compiled.function, compiled.packed_metadata,
            None, None, None, *self._arguments,
        )  # fmt: skip


class _Interpreted:
    """The same under Triton's interpreter."""

    __slots__ = ("_arguments", "_grid", "_kernel", "kernel")

    def __init__(self, kernel: Any, grid: Grid, arguments: Sequence[Any], name: str):
        self._kernel, self._grid, self._arguments = kernel, grid, arguments
        self.kernel = name

    def __call__(self) -> None:
        self._kernel[self._grid](*self._arguments)


class _InTurn:
    """Several launches, one after another, as one: it is named by the last."""

    __slots__ = ("_launches", "kernel")

    def __init__(self, launches: tuple[Any, ...]):
        self._launches, self.kernel = launches, launches[-1].kernel

    def __call__(self) -> None:
        for launch in self._launches:
            launch()


def in_turn(*launches: Any) -> Any:
    """Bound launches as one that runs them in order."""
    return _InTurn(launches)


def bind(
    kernel: Any,
    grid: tuple[int, ...],
    arguments: Sequence[Any],
    warps: int = 4,
    stages: int = 3,
    kept: object = None,
) -> Any:
    """Compiles a kernel for its arguments: tensors, numbers and constants in the kernel's order.

    Tensors among them live as long as the launch does, and so does what is `kept`.

    Raises:
        RuntimeError: it does not compile, or needs more than the device has.
    """
    whole: Grid = (*grid, 1, 1)[:3]  # type: ignore[assignment]
    name = kernel.fn.__name__.removeprefix("_")
    if DEVICE == "cpu":
        return _Interpreted(kernel, whole, arguments, name)
    try:
        compiled = kernel.warmup(
            *arguments, grid=whole, num_warps=warps, num_stages=stages, **OPTIONS
        )
        compiled._init_handles()
    except Exception as error:  # Triton's errors have no common class
        said = " ".join(str(error).split())
        raise RuntimeError(f"kernel {name} does not compile: {said}") from error
    return Launch(compiled, whole, arguments, name, kept)


def _address(value: Any) -> Any:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value
