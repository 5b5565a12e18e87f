"""Many loads of one serve, as data: the headroom of each, and how far each row of them reaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from metpipe.memory.report import Answer, answer_of
from metpipe.report.record import Record

__all__ = ["GridSection", "Reach"]


class Reach(Record):
    """Of an output and a number of sequences: the longest prompts of the grid that fit."""

    osl: int
    concurrency: int
    surely: int | None
    possibly: int | None


class GridSection(Record):
    """Every combination of three axes; the prompts change fastest, then the sequences.

    Headrooms are in bytes, at worst and at best; both are null for a load that the serve takes at
    no memory.
    """

    device: str
    budget: int
    isl: tuple[int, ...]
    osl: tuple[int, ...]
    concurrency: tuple[int, ...]
    headroom_low: tuple[int | None, ...]
    headroom_high: tuple[int | None, ...]

    @property
    def has_picture(self) -> bool:
        """Whether prompts and sequences both vary."""
        return len(self.isl) > 1 and len(self.concurrency) > 1

    def answers(self) -> Iterator[Answer | None]:
        """What each load comes to; None where the serve does not take it."""
        for low, high in zip(self.headroom_low, self.headroom_high, strict=True):
            yield None if low is None or high is None else answer_of(low, high)

    def counts(self) -> Mapping[Answer | None, int]:
        """How many loads come to what."""
        return Counter(self.answers())

    def reaches(self) -> Iterator[Reach]:
        """A row for each output and number of sequences, in order."""
        answers, width = list(self.answers()), len(self.isl)
        starts = range(0, len(answers), width)
        keys = ((osl, number) for osl in self.osl for number in self.concurrency)
        for (osl, number), start in zip(keys, starts, strict=True):
            row = dict(zip(self.isl, answers[start : start + width], strict=True))
            surely = [isl for isl, answer in row.items() if answer == "fits"]
            possibly = [isl for isl, answer in row.items() if answer in ("fits", "depends")]
            yield Reach(
                osl=osl,
                concurrency=number,
                surely=max(surely, default=None),
                possibly=max(possibly, default=None),
            )
