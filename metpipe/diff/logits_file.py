"""Logits of one run in a memory-mapped .npy file: the prefill's row, then a row for each step.

bf16 is kept as uint16 [steps + 1, V], since NumPy has no bf16.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LogitsFile", "logits_bytes"]


def logits_bytes(num_steps: int, vocab_size: int) -> int:
    """Bytes of one run's logits, to be held against the keep limit."""
    return 2 * (num_steps + 1) * vocab_size


class LogitsFile:
    """Open for writing (`write_new`) or for reading (`read_existing`)."""

    def __init__(self, path: Path, rows: npt.NDArray[np.uint16], *, unwritten: set[int]) -> None:
        self.path = path
        self.rows = rows
        self.unwritten = unwritten

    @classmethod
    def write_new(cls, path: Path, num_steps: int, vocab_size: int) -> LogitsFile:
        """A new file, all rows of which must be written before `write_out`."""
        shape = (num_steps + 1, vocab_size)
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=shape)
        return cls(path, rows, unwritten=set(range(num_steps + 1)))

    @classmethod
    def read_existing(cls, path: Path) -> LogitsFile:
        """A file that was written out; raises ValueError when it holds something else."""
        # Copy on write: torch warns about memory that it may not write to.
        rows = np.load(path, mmap_mode="c", allow_pickle=False)
        if rows.dtype != np.uint16 or rows.ndim != 2:
            raise ValueError(
                f"{path}: holds {rows.dtype} {list(rows.shape)}, not uint16 [rows, V]."
            )
        return cls(path, cast("npt.NDArray[np.uint16]", rows), unwritten=set())

    @property
    def num_steps(self) -> int:
        return len(self.rows) - 1

    def write_prefill(self, logits_V: torch.Tensor) -> None:
        self.write_row(0, logits_V)

    def write_step(self, step: int, logits_V: torch.Tensor) -> None:
        self.write_row(self.row_of(step), logits_V)

    def write_out(self) -> None:
        """Flushes to disk; raises ValueError when a row was never written."""
        if self.unwritten:
            missing = sorted(self.unwritten)[0]
            raise ValueError(f"{self.path}: row {missing} of {len(self.rows)} was never written.")
        cast("np.memmap[tuple[int, int], np.dtype[np.uint16]]", self.rows).flush()

    def read_prefill(self) -> torch.Tensor:
        """bf16 [V], a view of the file."""
        return self.read_row(0)

    def read_step(self, step: int) -> torch.Tensor:
        """bf16 [V], a view of the file."""
        return self.read_row(self.row_of(step))

    def row_of(self, step: int) -> int:
        if not 0 <= step < self.num_steps:
            raise IndexError(f"{self.path}: step {step} is not one of {self.num_steps} steps.")
        return step + 1

    def write_row(self, row: int, logits_V: torch.Tensor) -> None:
        if logits_V.dtype != torch.bfloat16 or logits_V.shape != self.rows.shape[1:]:
            form = f"{logits_V.dtype} {list(logits_V.shape)}"
            raise ValueError(f"{self.path}: takes bf16 [{self.rows.shape[1]}], was given {form}.")
        self.rows[row] = logits_V.detach().cpu().contiguous().view(torch.uint16).numpy()
        self.unwritten.discard(row)

    def read_row(self, row: int) -> torch.Tensor:
        # Two rows of zeros would be equal, so a row that was never written is not given out.
        if row in self.unwritten:
            raise ValueError(f"{self.path}: row {row} was not written yet.")
        return torch.from_numpy(self.rows[row]).view(torch.bfloat16)
