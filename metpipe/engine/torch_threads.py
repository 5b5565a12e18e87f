"""How many threads torch's own pool may use.

While kernels run it is one: torch's pool and the kernels' are two, and each wakes its threads on
the cores where the other's work. On two cores a step of a 135M model took 12 ms with one thread for
torch, 22 to 60 with two.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["all_cores", "torch_threads"]


def all_cores() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Give torch's pool so many threads, then as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
