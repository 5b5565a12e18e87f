"""The scratch memory of a kernel set, taken before any of its kernels is bound."""

from __future__ import annotations

from collections.abc import Callable

import torch

from metpipe.circuit import Circuit
from metpipe.engine.kernel_set import KernelSet

__all__ = ["reserve_scratch", "scratch_bytes"]

HEADS = ("q_heads", "kv_heads", "head_dim")


def scratch_bytes(circuit: Circuit, kernels: KernelSet, max_seq_len: int) -> int:
    """Bytes for the set's attention, beside its counters; 0 where it takes none.

    max_seq_len: tokens of the longest sequence.
    """
    needed = kernels.functions.get("attention.scratch_bytes")
    if needed is None or any(name not in circuit.dims for name in HEADS):
        return 0
    heads = {name: circuit.dims[name] for name in HEADS}
    found: int = needed(**heads, max_seq_len=max_seq_len)
    return found


def reserve_scratch(
    circuit: Circuit, kernels: KernelSet, max_seq_len: int, take: Callable[[int], torch.Tensor]
) -> None:
    """Give the set that much; `take` hands out so many bytes of the device, as uint8."""
    if needed := scratch_bytes(circuit, kernels, max_seq_len):
        kernels.functions["workspace.reserve"](needed, take)
