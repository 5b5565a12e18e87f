"""What is done with a run's logits while it runs: kept, or compared with the reference's.

Shapes: R rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from metpipe.diff.comparer import Comparer
from metpipe.diff.digest import HashRows, row_digests
from metpipe.diff.logits_file import LogitsFile
from metpipe.diff.trace import Trace

__all__ = ["Again", "ByBytes", "ByDigest", "Keep", "Unwatched"]

Digests = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Keep:
    """The reference's: its rows go to the file, if there is one."""

    file: LogitsFile | None

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> Digests | None:
        """Write the rows."""
        if self.file is not None:
            self.file.write(step, logits_RV)
        return None

    def ids(self, step: int | None, ids: Sequence[int]) -> None:
        """The trace has them."""

    def states(self, step: int, digests: Sequence[str]) -> None:
        """The trace has them."""


@dataclass(frozen=True, slots=True)
class Unwatched:
    """Nothing is kept and nothing compared: whoever runs it looks elsewhere."""

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> Digests:
        """No digest is needed."""
        return ("",) * len(logits_RV)

    def ids(self, step: int | None, ids: Sequence[int]) -> None:
        """Not looked at."""

    def states(self, step: int, digests: Sequence[str]) -> None:
        """Not looked at."""


@dataclass(frozen=True, slots=True)
class _Compared:
    comparer: Comparer
    reference: Trace

    def ids(self, step: int | None, ids: Sequence[int]) -> None:
        """Compare the ids that were chosen, and those of the draft head."""
        at = 0 if step is None else step + 1
        drafted = self.reference.drafted[at] if self.reference.drafted else ()
        self.comparer.ids(step, (*self.reference.chosen[at], *drafted), ids)

    def states(self, step: int, digests: Sequence[str]) -> None:
        """Compare what each sequence wrote."""
        self.comparer.step_states(step, self.reference.step_states[step], digests)

    def known(self, step: int | None) -> Digests:
        """The reference's digests of a step's rows."""
        return self.reference.prefill_digests if step is None else self.reference.step_digests[step]


@dataclass(frozen=True, slots=True)
class ByBytes(_Compared):
    """Compares with the reference's rows in a file."""

    file: LogitsFile

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> Digests | None:
        """Compare the rows; equal ones have the reference's digests."""
        kept_RV = self.file.read(step)
        if step is None:
            equal = self.comparer.prefill(kept_RV, logits_RV)
        else:
            equal = self.comparer.step(step, kept_RV, logits_RV)
        return self.known(step) if equal else None


@dataclass(frozen=True, slots=True)
class ByDigest(_Compared):
    """Compares digests, where the reference's rows were not kept."""

    hash_rows: HashRows

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> Digests:
        """Compare row by row; the bytes of a difference must be decoded again."""
        ours, known = row_digests(logits_RV, hash_rows=self.hash_rows), self.known(step)
        if step is None:
            self.comparer.prefill_digest(known, ours)
        else:
            self.comparer.step_digest(step, known, ours)
        return ours


@dataclass(frozen=True, slots=True)
class Again:
    """The bytes of steps that are known to differ, when both forwards run once more."""

    comparer: Comparer
    file: LogitsFile
    wanted: Collection[int | None]

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> Digests | None:
        """Compare a wanted step's rows."""
        if step in self.wanted:
            self.comparer.decoded_again(step, self.file.read(step), logits_RV)
        return None

    def ids(self, step: int | None, ids: Sequence[int]) -> None:
        """Compared before."""

    def states(self, step: int, digests: Sequence[str]) -> None:
        """Compared before."""
