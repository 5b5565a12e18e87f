"""Two buffers compared byte for byte, on the device where they live.

The bytes are viewed as integers, so equal NaNs are equal, -0.0 is not +0.0, and nothing is
tolerated. Another dtype or shape is a difference, whatever the bytes say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Buffer", "ByteComparison", "NothingComparedError", "as_tensor", "compare_bytes"]

Buffer = torch.Tensor | npt.NDArray[Any] | bytes


class NothingComparedError(ValueError):
    """A comparison that could not have failed: of no bytes, or of a buffer with itself."""


@dataclass(frozen=True, slots=True)
class ByteComparison:
    """What was found; true when every byte, the dtype and the shape are equal."""

    unequal: int
    """Unequal bytes over the common length, plus the difference of the lengths."""
    first: int | None
    """Offset of the first unequal byte, or the shorter length where only the lengths differ."""
    rows: tuple[int, ...]
    """Rows that differ; all of them where the shapes or dtypes do."""
    num_rows: int
    """Rows of the reference: its first dimension, or 1 when it has one dimension."""
    note: str | None
    """How dtype or shape differ."""

    def __bool__(self) -> bool:
        return self.unequal == 0 and self.note is None


def compare_bytes(reference: Buffer, run: Buffer) -> ByteComparison:
    """Compares all bytes; a reference on another device is first copied to the run's.

    Raises NothingComparedError for two empty buffers, and for one buffer given as both.
    """
    ours, theirs = as_tensor(reference), as_tensor(run)
    refuse_nothing(ours, theirs)
    ours = ours.to(theirs.device)
    note = form_difference(ours, theirs)
    if note is not None:
        return compare_other_form(ours, theirs, note)
    if equal_bytes(ours, theirs):
        return ByteComparison(0, None, (), count_rows(ours), None)
    return locate(ours, theirs)


def as_tensor(buffer: Buffer) -> torch.Tensor:
    """The buffer as a contiguous tensor; a byte string becomes uint8 [bytes]."""
    if isinstance(buffer, torch.Tensor):
        return buffer.detach().contiguous()
    if isinstance(buffer, bytes):
        return torch.from_numpy(np.frombuffer(bytearray(buffer), dtype=np.uint8))
    # torch warns about read-only memory, which it could write to: such an array is copied.
    array = np.ascontiguousarray(buffer).reshape(buffer.shape)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All bytes in order: uint8 [bytes], a view where the tensor is contiguous."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def refuse_nothing(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    if ours.numel() == 0 and theirs.numel() == 0:
        raise NothingComparedError("nothing was compared: both buffers are empty.")
    if ours.device == theirs.device and ours.data_ptr() == theirs.data_ptr():
        raise NothingComparedError("nothing was compared: reference and run are the same memory.")


def form_difference(ours: torch.Tensor, theirs: torch.Tensor) -> str | None:
    if ours.dtype != theirs.dtype:
        return f"dtype is {name_of(theirs.dtype)}, the reference's is {name_of(ours.dtype)}"
    if ours.shape != theirs.shape:
        return f"shape is {list(theirs.shape)}, the reference's is {list(ours.shape)}"
    return None


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def compare_other_form(ours: torch.Tensor, theirs: torch.Tensor, note: str) -> ByteComparison:
    """Counts over the common length: two forms are never equal, so every row differs."""
    our_bytes, their_bytes = flat_bytes(ours), flat_bytes(theirs)
    common = min(len(our_bytes), len(their_bytes))
    unequal_at = torch.nonzero(our_bytes[:common] != their_bytes[:common])
    beyond = max(len(our_bytes), len(their_bytes)) - common
    first = int(unequal_at[0]) if len(unequal_at) else (common if beyond else None)
    num_rows = max(count_rows(ours), count_rows(theirs))
    rows = tuple(range(num_rows))
    return ByteComparison(len(unequal_at) + beyond, first, rows, count_rows(ours), note)


def locate(ours: torch.Tensor, theirs: torch.Tensor) -> ByteComparison:
    num_rows = count_rows(ours)
    unequal = (flat_bytes(ours) != flat_bytes(theirs)).view(num_rows, -1)  # [rows, bytes of a row]
    rows = torch.nonzero(unequal.any(dim=1)).flatten().tolist()
    row_bytes = unequal.shape[1]
    first = rows[0] * row_bytes + int(torch.nonzero(unequal[rows[0]])[0])
    return ByteComparison(int(unequal.sum()), first, tuple(rows), num_rows, None)


def count_rows(tensor: torch.Tensor) -> int:
    return tensor.shape[0] if tensor.ndim >= 2 else 1


def equal_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Whether all bytes are equal, compared as the widest integers that both are aligned to."""
    contents = (flat_bytes(ours), flat_bytes(theirs))
    for integers in (torch.int64, torch.int32, torch.int16):
        if all(is_aligned(content, integers.itemsize) for content in contents):
            return torch.equal(contents[0].view(integers), contents[1].view(integers))
    return torch.equal(*contents)


def is_aligned(content: torch.Tensor, size: int) -> bool:
    starts = (content.storage_offset(), content.data_ptr())
    return not (len(content) % size or any(start % size for start in starts))
