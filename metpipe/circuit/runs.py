"""Row tables of a batched verify: which adjacent sequences have the same number of rows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from metpipe.circuit.rules import RunSelector
from metpipe.errors import ConfigError

__all__ = ["RowTable", "Run"]

RUN = re.compile(r"([1-9][0-9]*)x([1-9][0-9]*)(!?)")


@dataclass(frozen=True, slots=True)
class Run:
    """`n` adjacent sequences of `k` rows each. One sequence is never contiguous."""

    k: int
    n: int
    contiguous: bool

    @property
    def text(self) -> str:
        """`4x3`, with `!` when its slots are fragmented."""
        return f"{self.k}x{self.n}{'!' if self.n > 1 and not self.contiguous else ''}"

    def times(self, how: str) -> int:
        """How often `once`, `per_seq`, `per_row`, `per_seq_row_but_last` is here."""
        match how:
            case "once":
                return 1
            case "per_seq":
                return self.n
            case "per_row":
                return self.n * self.k
        return self.n * (self.k - 1)


@dataclass(frozen=True, slots=True)
class RowTable:
    """The runs of a batched verify, in row order."""

    runs: tuple[Run, ...]
    carried: bool = True

    @classmethod
    def of(cls, ks: Sequence[int], slots: Sequence[int], *, carried: bool = True) -> RowTable:
        """The table of sequences with these row counts in these state slots."""
        runs = []
        for k, members in groupby(zip(ks, slots, strict=True), key=lambda pair: pair[0]):
            held = [slot for _, slot in members]
            steps = all(b == a + 1 for a, b in pairwise(held))
            runs.append(Run(k, len(held), len(held) > 1 and steps))
        return cls(tuple(runs), carried)

    @classmethod
    def parse(cls, text: str) -> RowTable:
        """Read `4x3 2x2!`, or the same behind `uncarried: `."""
        rest = text.removeprefix("uncarried: ")
        matches = [RUN.fullmatch(part) for part in rest.split()]
        if not matches or not all(matches):
            raise ConfigError(f"{text!r} is no row table; write runs as KxN, such as 4x3 2x2!")
        runs = tuple(_run(match) for match in matches if match)
        return cls(runs, carried=rest == text)

    @property
    def text(self) -> str:
        """Its canonical spelling."""
        runs = " ".join(run.text for run in self.runs)
        return runs if self.carried else f"uncarried: {runs}"

    @property
    def rows(self) -> int:
        """Rows of all sequences."""
        return sum(run.k * run.n for run in self.runs)

    def selector(self, run: Run, selectors: Sequence[RunSelector]) -> RunSelector | None:
        """The first selector that takes a run."""
        return next((one for one in selectors if self._takes(one, run)), None)

    def covered_by(self, selectors: Sequence[RunSelector]) -> bool:
        """Whether every run has a selector."""
        return all(self.selector(run, selectors) for run in self.runs)

    def _takes(self, selector: RunSelector, run: Run) -> bool:
        return (
            selector.k[0] <= run.k <= selector.k[1]
            and selector.n[0] <= run.n <= selector.n[1]
            and selector.contiguous in (None, run.contiguous)
            and selector.carried in (None, self.carried)
        )


def _run(match: re.Match[str]) -> Run:
    n = int(match[2])
    return Run(int(match[1]), n, n > 1 and not match[3])
