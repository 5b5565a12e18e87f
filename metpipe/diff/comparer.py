"""Builds the comparison of one run with the reference while the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metpipe.diff.bytewise import (
    Buffer,
    ByteComparison,
    NothingComparedError,
    as_tensor,
    compare_bytes,
)
from metpipe.diff.comparison import Comparison, Difference, StateDifference
from metpipe.diff.severity import Severity, measure
from metpipe.diff.states import differing_labels

__all__ = ["Comparer", "Digests"]

Digests = str | Sequence[str]
"""The digest of a step, or one for each of its rows."""


class Comparer:
    """Fed with the prefill, then steps 0, 1, 2, ... in order; each either as bytes or as digests.

    Past the keep limit only digests of the reference are there. A difference known by digest
    has no bytes until `decoded_again` is given them.
    """

    def __init__(
        self, variant: str, *, expected_steps: int | None = None, measured: int | None = None
    ) -> None:
        """`measured`: of so many differing steps the severity is taken; None: of all."""
        self.variant = variant
        self.measured = measured
        self.expected_steps = expected_steps
        self.num_rows: list[int] = []
        self.prefilled = False
        self.found: dict[int | None, Difference] = {}
        self.num_states = 0
        self.state_diff: tuple[str, ...] = ()
        self.state_steps: list[StateDifference] = []

    def prefill(self, reference: Buffer, run: Buffer) -> ByteComparison:
        """Compares the prefill's logits; the result is true when they are equal."""
        self.start_prefill()
        return self.compare(None, reference, run)

    def step(self, index: int, reference: Buffer, run: Buffer) -> ByteComparison:
        """Compares the logits of a step, [V] or [R, V]; true when they are equal.

        Raises ValueError unless `index` is the next step, and NothingComparedError on no bytes.
        """
        self.check_next(index)
        outcome = self.compare(index, reference, run)
        self.num_rows.append(outcome.num_rows)
        return outcome

    def prefill_digest(self, reference: Digests, run: Digests) -> bool:
        """Compares the prefill by digest; true when equal."""
        self.start_prefill()
        return self.compare_digests(None, rows_of(reference), rows_of(run))

    def step_digest(self, index: int, reference: Digests, run: Digests) -> bool:
        """Compares a step by digest, one for each row or one for all; true when equal."""
        self.check_next(index)
        ours, theirs = rows_of(reference), rows_of(run)
        equal = self.compare_digests(index, ours, theirs)
        self.num_rows.append(len(ours))
        return equal

    def decoded_again(self, index: int | None, reference: Buffer, run: Buffer) -> ByteComparison:
        """Gives the bytes of a difference known by digest; `index` is None for the prefill.

        It stays a difference even if the new bytes are equal: then a forward does not repeat.
        """
        known = self.found.get(index)
        if known is None or known.unequal_bytes is not None:
            raise ValueError(f"step {index} is not a difference known by its digest alone.")
        outcome = self.compare(index, reference, run)
        if outcome:
            note = "digests differed, the bytes decoded again are equal: it does not repeat"
            self.found[index] = Difference(index, 0, None, known.rows, note)
        return outcome

    def ids(self, index: int | None, reference: Sequence[int], run: Sequence[int]) -> bool:
        """Compares the ids that a step chose and those of its draft head; true when equal."""
        if tuple(reference) == tuple(run):
            return True
        note = f"ids are {different_ids(run, reference)}, the reference's are "
        note += different_ids(reference, run)
        known = self.found.get(index)
        if known is None:
            self.found[index] = Difference(index, 0, None, (), note)
        else:
            self.found[index] = replace(known, note=note)
        return False

    def step_states(self, index: int, reference: Sequence[str], run: Sequence[str]) -> bool:
        """Compares what each sequence wrote in a step; true when equal."""
        if not reference and not run:
            raise NothingComparedError(f"nothing was compared: no state after step {index}.")
        longer = range(max(len(reference), len(run)))
        rows = tuple(i for i in longer if reference[i : i + 1] != run[i : i + 1])
        if rows:
            self.state_steps.append(StateDifference(index, rows))
        return not rows

    def state(self, reference: Mapping[str, str], run: Mapping[str, str]) -> tuple[str, ...]:
        """Compares state digests, label by label; returns the labels that differ."""
        if not reference and not run:
            raise NothingComparedError("nothing was compared: neither run has a state digest.")
        differing = differing_labels(reference, run)
        self.num_states += len({*reference, *run})
        self.state_diff += differing
        return differing

    def result(self) -> Comparison:
        """Everything found so far.

        Raises NothingComparedError without a prefill or a step, ValueError short of expected steps.
        """
        steps = len(self.num_rows)
        if not self.prefilled or not steps:
            missing = "no step" if self.prefilled else "no prefill"
            raise NothingComparedError(f"{self.variant}: {missing} was compared.")
        if self.expected_steps not in (None, steps):
            raise ValueError(f"{self.variant}: {steps} of {self.expected_steps} steps compared.")
        return Comparison(
            variant=self.variant,
            steps=steps,
            step_rows=sum(self.num_rows),
            prefill=self.found.get(None),
            differences=tuple(self.found[i] for i in range(steps) if i in self.found),
            num_states=self.num_states,
            state_diff=self.state_diff,
            state_steps=tuple(self.state_steps),
        )

    def start_prefill(self) -> None:
        if self.prefilled:
            raise ValueError(f"{self.variant}: the prefill was compared twice.")
        self.prefilled = True

    def check_next(self, index: int) -> None:
        if index != len(self.num_rows):
            raise ValueError(f"{self.variant}: step {index} after {len(self.num_rows)} steps.")

    def compare(self, index: int | None, reference: Buffer, run: Buffer) -> ByteComparison:
        outcome = compare_bytes(reference, run)
        if not outcome:
            known = sum(found.severity is not None for found in self.found.values())
            wanted = self.measured is None or known < self.measured
            severity = severity_of(reference, run, outcome.rows) if wanted else None
            self.found[index] = Difference(
                index, outcome.unequal, outcome.first, outcome.rows, outcome.note, severity
            )
        return outcome

    def compare_digests(
        self, index: int | None, ours: tuple[str, ...], theirs: tuple[str, ...]
    ) -> bool:
        if not ours and not theirs:
            raise NothingComparedError("nothing was compared: no digests.")
        longer = range(max(len(ours), len(theirs)))
        rows = tuple(row for row in longer if ours[row : row + 1] != theirs[row : row + 1])
        if rows:
            note = None if len(ours) == len(theirs) else f"{len(theirs)} rows, not {len(ours)}"
            self.found[index] = Difference(index, None, None, rows, note)
        return not rows


def rows_of(digests: Digests) -> tuple[str, ...]:
    return (digests,) if isinstance(digests, str) else tuple(digests)


def severity_of(reference: Buffer, run: Buffer, rows: tuple[int, ...]) -> Severity | None:
    """The severity of the differing rows alone; a byte string has none."""
    ours, theirs = as_tensor(reference), as_tensor(run)
    if ours.shape != theirs.shape:
        return None
    if ours.ndim == 2:
        ours, theirs = ours[list(rows)], theirs[list(rows)]
    return measure(ours.to(theirs.device), theirs)


def different_ids(ours: Sequence[int], theirs: Sequence[int]) -> str:
    """Those of `ours` that are not at the same place in `theirs`, each with its place."""
    places = [i for i, one in enumerate(ours) if tuple(theirs[i : i + 1]) != (one,)]
    return ", ".join(f"{ours[i]} at {i}" for i in places) or "fewer"
