"""The prompts of plain decoding and the cases of the other modes as one kind of thing to show."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from metpipe.report.diff_section import Comparison, DiffSection, Timing

__all__ = ["ShownCase", "shown_cases"]

STATES_NAMED = 1
"""Labels of differing states that a place names; report.json has all."""


@dataclass(frozen=True, slots=True)
class ShownCase:
    """What ran, and what was found of each forward."""

    mode: str
    name: str
    tokens: tuple[int, ...]
    """prompt length of each sequence"""
    steps: int
    comparisons: tuple[Comparison, ...]
    timings: tuple[Timing, ...]
    ks: tuple[int, ...] = ()
    accepted: tuple[tuple[int, ...], ...] = ()
    slots: tuple[int, ...] = ()

    @property
    def full_name(self) -> str:
        """The name, with its mode where it is not plain decoding."""
        return self.name if self.mode == "single" else f"{self.mode}, {self.name}"

    def comparison(self, variant: str) -> Comparison | None:
        """What was found of a forward."""
        return next((c for c in self.comparisons if c.variant == variant), None)

    def timing(self, variant: str) -> Timing | None:
        """A forward's times."""
        return next((t for t in self.timings if t.variant == variant), None)

    @property
    def token_range(self) -> str:
        """`23`, or `12-40` over several sequences."""
        low, high = min(self.tokens), max(self.tokens)
        return str(low) if low == high else f"{low}-{high}"

    @property
    def accepts(self) -> str:
        """How many verifies accepted every draft; empty where nothing is verified."""
        whole = [
            count == width - 1
            for counts in self.accepted
            for count, width in zip(counts, self.ks, strict=True)
        ]
        return f"full {sum(whole)}, partial {len(whole) - sum(whole)}" if whole else ""

    @property
    def slot_runs(self) -> str:
        """`0-1, 3-5`: the slots in order, neighbours together."""
        if not self.slots:
            return ""
        runs = [[self.slots[0]]]
        for before, slot in pairwise(self.slots):
            if slot == before + 1:
                runs[-1].append(slot)
            else:
                runs.append([slot])
        return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)

    def place(self, comparison: Comparison) -> str:
        """Where a forward starts to differ: step, row and whose it is, or a state."""
        if comparison.differences:
            first = comparison.differences[0]
            row = self._row(first.step, first.rows[0]) if first.rows else "the draft head's ids"
            return f"{'before step 0' if first.step is None else f'step {first.step}'}, {row}"
        if comparison.state_steps:
            state = comparison.state_steps[0]
            return f"state after step {state.step}{self._of(state.sequences[0])}"
        named = ", ".join(comparison.state_diff[:STATES_NAMED])
        more = len(comparison.state_diff) - STATES_NAMED
        return f"state at the end, {named}{f' and {more} more' if more > 0 else ''}"

    def _row(self, step: int | None, row: int) -> str:
        """A row of logits: of the main model, or behind those of the draft head."""
        count = len(self.tokens)
        if step is None:
            return self._first_row(row, count)
        rows = sum(self.ks) if self.ks else count
        if row >= rows:
            return self._draft(row - rows)
        if not self.ks:
            return f"row {row}"
        if count == 1:
            return f"row {row} of {self.ks[0]}"
        at = row
        for sequence, width in enumerate(self.ks):
            if at < width:
                return f"row {row} (sequence {sequence}, row {at} of {width})"
            at -= width
        raise AssertionError("a row of the main model lies in some sequence")

    def _first_row(self, row: int, count: int) -> str:
        """Prefill rows, then the bootstrap's, then the draft head's."""
        if row < count:
            return f"the prefill{self._of(row)}"
        if row < 2 * count:
            return f"the bootstrap{self._of(row - count)}"
        return self._draft(row - 2 * count)

    def _draft(self, row: int) -> str:
        """Drafts lie draft by draft, each for all sequences."""
        draft, sequence = divmod(row, len(self.tokens))
        return f"draft {draft} of the head{self._of(sequence)}"

    def _of(self, sequence: int) -> str:
        """Whose it is, where there are several sequences."""
        return f" (sequence {sequence})" if len(self.tokens) > 1 else ""


def shown_cases(diff: DiffSection) -> tuple[ShownCase, ...]:
    """All cases in the order in which they ran."""
    return (*_prompts(diff), *_cases(diff))


def _prompts(diff: DiffSection) -> Iterator[ShownCase]:
    for index, prompt in enumerate(diff.prompts):
        yield ShownCase(
            mode="single",
            name=f"prompt {index}",
            tokens=(prompt.tokens,),
            steps=diff.steps,
            comparisons=prompt.comparisons,
            timings=prompt.timings,
        )


def _cases(diff: DiffSection) -> Iterator[ShownCase]:
    for case in diff.cases:
        yield ShownCase(
            mode=case.mode,
            name=case.name,
            tokens=case.tokens,
            steps=case.steps,
            comparisons=case.comparisons,
            timings=case.timings,
            ks=case.ks,
            accepted=case.accepted,
            slots=case.slots,
        )
