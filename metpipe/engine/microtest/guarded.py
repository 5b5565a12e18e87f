"""Tensors with marked memory on both sides, so that a kernel which writes past one is seen."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["FILL_BITS", "Guarded", "count_unequal", "fill", "is_fill"]

ALIGNMENT = 256
"""As an arena places edges."""
GUARD_BYTES = 1024
FILL_BITS = -91
"""0xFFA5: a NaN that no kernel writes, since every NaN of the set is 0x7FC0."""


@dataclass(frozen=True, slots=True)
class Guarded:
    """A contiguous tensor inside a larger one; the bytes around it hold a fixed pattern."""

    tensor: torch.Tensor
    _around: tuple[torch.Tensor, torch.Tensor]
    _pattern: torch.Tensor

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Guarded:
        """Uninitialised; each guard is at least as long as a row."""
        size = torch.Size(shape).numel() * dtype.itemsize
        guard = -(-max(GUARD_BYTES, size // max(shape[0], 1)) // ALIGNMENT) * ALIGNMENT
        whole = torch.empty(ALIGNMENT + 2 * guard + size, dtype=torch.uint8, device=device)
        start = -whole.data_ptr() % ALIGNMENT + guard
        around = (whole[start - guard : start], whole[start + size : start + size + guard])
        pattern = ((torch.arange(guard) * 73 + 41) % 251).to(torch.uint8).to(device)
        made = cls(whole[start : start + size].view(dtype).view(shape), around, pattern)
        made.restore()
        return made

    def restore(self) -> None:
        """Write the pattern around the tensor again."""
        for side in self._around:
            side.copy_(self._pattern)

    def trespass(self) -> int:
        """Bytes around the tensor that were changed."""
        return sum(_count(side, self._pattern) for side in self._around)


def count_unequal(a: torch.Tensor, b: torch.Tensor) -> int:
    """Bytes that differ between two contiguous tensors of one size, on one device."""
    ours, theirs = (tensor.reshape(-1).view(torch.uint8) for tensor in (a, b))
    return _count(ours, theirs)


def _count(ours: torch.Tensor, theirs: torch.Tensor) -> int:
    if ours.device.type == "cpu":
        # Nearly always 0, which NumPy says sooner than it counts, and it wakes no threads.
        mine, other = ours.numpy(), theirs.numpy()
        return 0 if bool((mine == other).all()) else int((mine != other).sum())
    return int((ours != theirs).sum())


def fill(tensor: torch.Tensor) -> None:
    """Mark every element as unwritten: NaN where it is a float."""
    tensor.view(torch.int16).fill_(FILL_BITS)


def is_fill(tensor: torch.Tensor) -> torch.Tensor:
    """Which 16-bit words are still marked: bool [words]."""
    marked: torch.Tensor = tensor.reshape(-1).view(torch.int16) == FILL_BITS
    return marked
