"""Logits of one run in a memory-mapped .npy file: the prefill's rows, then those of each step.

bf16 is kept as uint16 [P + steps * R, V], since NumPy has no bf16.
Shapes: P rows before the first step, R rows of a step, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LogitsFile", "Rows"]

IN_MEMORY = torch.device("cpu")
"""The file's own mapping, of which nothing is copied."""


@dataclass(frozen=True, slots=True)
class Rows:
    """How many rows of logits a run has: before the first step, and in each step."""

    num_steps: int
    prefill: int = 1
    step: int = 1

    @property
    def total(self) -> int:
        """Rows of the whole run."""
        return self.prefill + self.num_steps * self.step

    def num_bytes(self, vocab_size: int) -> int:
        """Bytes of the run's logits, to be held against the keep limit."""
        return 2 * self.total * vocab_size


class LogitsFile:
    """Open for writing (`write_new`) or for reading (`read_existing`)."""

    def __init__(
        self, path: Path, rows: npt.NDArray[np.uint16], form: Rows, *, unwritten: set[int]
    ) -> None:
        self.path = path
        self.rows = rows
        self.content_RV = torch.from_numpy(rows).view(torch.bfloat16)
        self.form = form
        self.unwritten = unwritten

    @classmethod
    def write_new(cls, path: Path, form: Rows, vocab_size: int) -> LogitsFile:
        """A new file, all rows of which must be written before `write_out`."""
        shape = (form.total, vocab_size)
        rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint16, shape=shape)
        return cls(path, rows, form, unwritten=set(range(form.total)))

    @classmethod
    def read_existing(cls, path: Path, form: Rows, device: torch.device = IN_MEMORY) -> LogitsFile:
        """A file that was written out; raises ValueError when it holds something else.

        To another device it is copied whole, once: a copy a step would be a wait a step.
        """
        # Copy on write: torch warns about memory that it may not write to.
        rows = np.load(path, mmap_mode="c", allow_pickle=False)
        if rows.dtype != np.uint16 or rows.ndim != 2:
            raise ValueError(
                f"{path}: holds {rows.dtype} {list(rows.shape)}, not uint16 [rows, V]."
            )
        if len(rows) != form.total:
            raise ValueError(f"{path}: holds {len(rows)} rows, and the run has {form.total}.")
        file = cls(path, cast("npt.NDArray[np.uint16]", rows), form, unwritten=set())
        file.content_RV = file.content_RV.to(device)
        return file

    def write(self, step: int | None, logits_RV: torch.Tensor) -> None:
        """The rows of a step, or of the prefill (None)."""
        first, count = self.place(step)
        form = f"{logits_RV.dtype} {list(logits_RV.shape)}"
        wanted = (count, self.rows.shape[1])
        if logits_RV.dtype != torch.bfloat16 or logits_RV.shape != wanted:
            raise ValueError(f"{self.path}: takes bf16 {list(wanted)}, was given {form}.")
        content = logits_RV.detach().cpu().contiguous().view(torch.uint16).numpy()
        self.rows[first : first + count] = content
        self.unwritten.difference_update(range(first, first + count))

    def write_out(self) -> None:
        """Flushes to disk; raises ValueError when a row was never written."""
        if self.unwritten:
            missing = sorted(self.unwritten)[0]
            raise ValueError(f"{self.path}: row {missing} of {len(self.rows)} was never written.")
        cast("np.memmap[tuple[int, int], np.dtype[np.uint16]]", self.rows).flush()

    def read(self, step: int | None) -> torch.Tensor:
        """The rows of a step, or of the prefill (None): bf16 [rows, V], a view."""
        first, count = self.place(step)
        # Two rows of zeros would be equal, so a row that was never written is not given out.
        if missing := self.unwritten.intersection(range(first, first + count)):
            raise ValueError(f"{self.path}: row {min(missing)} was not written yet.")
        return self.content_RV[first : first + count]

    def place(self, step: int | None) -> tuple[int, int]:
        """The first row of a step (None: the prefill), and how many it has."""
        if step is None:
            return 0, self.form.prefill
        if not 0 <= step < self.form.num_steps:
            raise IndexError(f"{self.path}: step {step} is not one of {self.form.num_steps} steps.")
        return self.form.prefill + step * self.form.step, self.form.step
