"""What the invariance table is made of: its prompts, and a leg as data.

A leg is a case with the tokens that it is fed, and the rows and states of it that other cases had
before: a prompt alone, or another leg.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Point
from metpipe.diff.prompts import batch_prompts, prompt_of_len
from metpipe.stages.modes.case import Case

__all__ = [
    "MODE",
    "VERIFY_WIDTHS",
    "Planned",
    "Table",
    "Tokens",
    "all_steps",
    "alone",
    "point_at",
    "whole_steps",
]

MODE = "invariance"
CHUNKED = 65
"""Tokens of the prompt that is prefilled in chunks: four blocks and one token."""
TENANT = 150
"""Tokens of the sequence that had the slot before: longer than any prompt of the table."""
VERIFY_WIDTHS = (2, 3, 4, 5, 8)

Tokens = Sequence[Sequence[int]]
"""Per prompt of the table, the tokens that are decoded behind it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The prompts that every leg takes its rows from, and how far they are decoded."""

    prompts: tuple[tuple[int, ...], ...]
    others: tuple[tuple[int, ...], ...]
    """as long as `prompts`, other tokens"""
    chunked: tuple[int, ...]
    tenant: tuple[int, ...]
    steps: int
    limit: int
    vocab_size: int
    drafts: bool
    """whether the draft head is tried too"""

    @property
    def deeper(self) -> tuple[int, ...]:
        """Steps at which verifies that accept all end, where those are not the table's own."""
        ends = {whole_steps(self.steps, width) * width for width in VERIFY_WIDTHS}
        return tuple(sorted(ends - {self.steps}))

    @property
    def changed_step(self) -> int:
        """Where the detection control changes a token."""
        return self.steps // 2

    @property
    def num_alone(self) -> int:
        """The batches' prompts, the chunked one, the first again for each of `deeper`."""
        return len(self.prompts) + 1 + len(self.deeper)

    def ending_at(self, steps: int) -> int:
        """The index of the first prompt alone, decoded for so many steps."""
        return 0 if steps == self.steps else len(self.prompts) + 1 + self.deeper.index(steps)

    @classmethod
    def of(cls, limit: int, steps: int, vocab_size: int, *, drafts: bool) -> Table:
        """For widths up to `limit`."""
        prompts = [tuple(prompt) for prompt in batch_prompts(limit, vocab_size)]
        other = max(map(tuple, batch_prompts(2 * limit, vocab_size)), key=len)
        return cls(
            prompts=tuple(prompts),
            others=tuple(other[: len(prompt)] for prompt in prompts),
            chunked=tuple(prompt_of_len(CHUNKED, vocab_size)),
            tenant=tuple(prompt_of_len(TENANT, vocab_size)),
            steps=steps,
            limit=limit,
            vocab_size=vocab_size,
            drafts=drafts,
        )


def whole_steps(tokens: int, width: int) -> int:
    """Verifies of `width` rows that cover at least so many tokens."""
    return -(-tokens // width)


@dataclass(frozen=True, slots=True)
class Planned:
    """A leg: its case, what it is fed, and which of its rows another case had before it."""

    name: str
    case: Case
    fed: tuple[tuple[int, ...], ...]
    accepted: tuple[tuple[int, ...], ...] = ()
    drafted: tuple[int, ...] = ()
    """of drafts: the tokens that the bootstrap is fed, then those behind it"""
    following: tuple[int, ...] = ()
    """of drafts: the token behind each sequence's last step"""
    rows: tuple[tuple[str, Point], ...] = ()
    """(case, point): ours is a row of the case of that name"""
    ends: tuple[tuple[str, int, int], ...] = ()
    """(case, sequence of it, sequence of the leg) whose states at the end must be the same"""
    axis: str = ""
    changed_step: int | None = None
    """of a detection control: where its changed token must be seen"""
    again: bool = False
    """whether it is run once more, and held against itself"""

    @property
    def against(self) -> frozenset[str]:
        """The names of the cases whose rows and states it needs."""
        return frozenset((*(key for key, _ in self.rows), *(key for key, _, _ in self.ends)))


def alone(table: Table, index: int) -> Case:
    """A prompt decoded alone, by its index as `Table.num_alone` counts them."""
    behind = index - len(table.prompts)
    if behind < 0:
        return Case(MODE, f"alone {index}", (table.prompts[index],), table.steps)
    if behind == 0:
        return Case(MODE, "alone, chunked", (table.chunked,), table.steps)
    steps = table.deeper[behind - 1]
    return Case(MODE, f"alone 0, {steps} steps", table.prompts[:1], steps)


def point_at(step: int, ours: int, theirs: int) -> Point:
    """Two rows of the same step of both."""
    return Point((step, ours), (step, theirs))


def all_steps(steps: int) -> range:
    """What lies before the first step, then each step."""
    return range(PREFILL, steps)
