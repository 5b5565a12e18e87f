"""The scratch memory of the set's kernels: one buffer a process, taken before anything is bound.

Launches run one after another on one stream, so all of them may share it. Its leading int32 words
are counters, which are zero between launches.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .check import DEVICE

__all__ = ["COUNTERS", "counters", "has_room", "reserve", "scratch"]

COUNTERS = 4096
_held: dict[str, torch.Tensor] = {}


def reserve(num_bytes: int, take: Callable[[int], torch.Tensor]) -> None:
    """Make the scratch buffer hold `num_bytes` beside the counters.

    take: gives that many bytes of the device, as uint8; a tensor that was replaced stays alive as
    long as launches that were bound to it.
    """
    whole = take(4 * COUNTERS + num_bytes)
    whole[: 4 * COUNTERS].zero_()
    _held["whole"] = whole


def has_room(num_floats: int) -> bool:
    """Whether so many floats need no more than was reserved, if anything was."""
    return "whole" not in _held or _held["whole"].numel() - 4 * COUNTERS >= 4 * num_floats


def scratch(num_floats: int) -> torch.Tensor:
    """The scratch buffer, float32 [at least num_floats]."""
    need = 4 * num_floats
    if "whole" not in _held or _held["whole"].numel() - 4 * COUNTERS < need:
        reserve(need, lambda size: torch.empty(size, dtype=torch.uint8, device=DEVICE))
    return _held["whole"][4 * COUNTERS :].view(torch.float32)


def counters() -> torch.Tensor:
    """The counters, int32 [COUNTERS]: a kernel leaves those it used at zero."""
    if "whole" not in _held:
        scratch(0)
    return _held["whole"][: 4 * COUNTERS].view(torch.int32)
