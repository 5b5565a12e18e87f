"""Faults of a row that looks at more than itself: at how many rows there are, or at the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.stages.planted.rig import Arguments, Fault, Kernel, after

__all__ = ["in_both", "one_scale_for_all", "scaled_by_padding", "split_at"]


def split_at(rows: int) -> Fault:
    """A `linear.qkv` that at this row count sums two halves of k and rounds each: a split-K."""

    def wrap(kernel: Kernel) -> Kernel:
        def bind(**arguments: Any) -> Callable[[], None]:
            if arguments["x"].shape[0] != rows:
                return kernel(**arguments)
            half = arguments["x"].shape[1] // 2
            halves = [_half(kernel, arguments, part) for part in (slice(half), slice(half, None))]

            def run() -> None:
                (first, run_first), (second, run_second) = halves
                run_first()
                run_second()
                for name in "qkv":
                    torch.add(first[name], second[name], out=arguments[name])

            return run

        return bind

    return wrap


def _half(kernel: Kernel, whole: Arguments, part: slice) -> tuple[Arguments, Callable[[], None]]:
    """The kernel over some columns, into outputs of its own."""
    own = {
        **whole,
        "x": whole["x"][:, part].contiguous(),
        **{f"{name}_weight": whole[f"{name}_weight"][:, part].contiguous() for name in "qkv"},
        **{name: torch.full_like(whole[name], torch.nan) for name in "qkv"},
    }
    launch = kernel(**own)

    def run() -> None:
        own["x"].copy_(whole["x"][:, part])
        launch()

    return own, run


def scaled_by_padding(_: int, arguments: Arguments) -> None:
    """One scale for all rows of a step, and a padding row holds something huge: all are zero.

    A padding row has no token, so that its activation is zero; a prefill has no such row.
    """
    padding = (arguments["y"] == 0).all(1)
    if padding.any():
        arguments["y"].zero_()


def one_scale_for_all(_: int, arguments: Arguments) -> None:
    """Eight-bit values under one scale, that of the greatest value in any row."""
    y = arguments["y"]
    scale = y.float().abs().max() / 127
    y.copy_((y.float() / scale).round() * scale)


def in_both(act: Callable[[int, Arguments], object]) -> dict[str, Fault]:
    """After the activation, whether it is launched alone or fused."""
    return {"activation.silu_mul": after(act), "linear.gate_up_silu": after(act)}
