"""The same logical row computed two ways: a table of cells, and which of them must be equal.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch

from metpipe.diff.bytewise import NothingComparedError, compare_bytes
from metpipe.diff.controls import PREFILL
from metpipe.diff.records import Control, ControlVerdict
from metpipe.diff.severity import Severity, measure, worst
from metpipe.nouns import number_of

__all__ = [
    "Cell",
    "Point",
    "Side",
    "broken_promises",
    "compare_sides",
    "judge_changed_cell",
    "judge_repeat_cell",
    "own_states",
]


@dataclass(frozen=True, slots=True)
class Point:
    """A row of one side and the row of the other that must be the same: (step, row) of each.

    Step PREFILL is what lies before the first step.
    """

    ours: tuple[int, int]
    theirs: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Side:
    """One way of computing: logits by (step, row), and digests of the state at its end."""

    rows: Mapping[tuple[int, int], torch.Tensor]
    """bf16 [V] each"""
    states: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair of ways, compared; true when nothing differs."""

    variant: str
    axis: str
    """what is varied: width, slot, verify, ... as the kernel set's promises are named"""
    name: str
    points: int
    """rows compared"""
    promised: bool
    """whether the kernel set says that it holds"""
    step: int | None = None
    """of the first row that differs, on the varied side"""
    row: int | None = None
    byte: int | None = None
    differing: int = 0
    """rows that differ"""
    severity: Severity | None = None
    state_diff: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.differing and not self.state_diff

    @property
    def sentence(self) -> str:
        """One line for a report or a reason."""
        if self.differing:
            where = "before the first step" if self.step == PREFILL else f"at step {self.step}"
            found = f"differs {where}, row {self.row}, byte {self.byte}"
            return f"{self.variant}, {self.axis}, {self.name}: {found}"
        if self.state_diff:
            return f"{self.variant}, {self.axis}, {self.name}: state differs ({self.state_diff[0]})"
        return (
            f"{self.variant}, {self.axis}, {self.name}: equal over {number_of(self.points, 'row')}"
        )


def compare_sides(
    known: Mapping[str, Side],
    theirs: Side,
    points: Iterable[tuple[str, Point]],
    *,
    variant: str,
    axis: str,
    name: str,
    promised: bool,
) -> Cell:
    """Compare every point byte for byte; each says which of the known sides has its own row.

    Raises NothingComparedError without a point.
    """
    found: list[tuple[int, int, int]] = []
    severities = []
    count = 0
    for key, point in sorted(points, key=lambda found: found[1].theirs):
        count += 1
        our_V, their_V = known[key].rows[point.ours], theirs.rows[point.theirs]
        outcome = compare_bytes(our_V, their_V)
        if not outcome:
            assert outcome.first is not None, "bytes differ somewhere"
            found.append((*point.theirs, outcome.first))
            severities.append(measure(our_V, their_V))
    if not count:
        raise NothingComparedError(f"{variant}, {axis}, {name}: no row was compared.")
    step, row, byte = found[0] if found else (None, None, None)
    return Cell(
        variant=variant,
        axis=axis,
        name=name,
        points=count,
        promised=promised,
        step=step,
        row=row,
        byte=byte,
        differing=len(found),
        severity=worst(severity for severity in severities if severity is not None),
    )


def own_states(side: Side, sequence: int) -> dict[str, str]:
    """State -> digest, of one of the side's sequences; alone it has no number."""
    prefix = f"sequence {sequence}, "
    numbered = {
        label.removeprefix(prefix): digest
        for label, digest in side.states.items()
        if label.startswith(prefix)
    }
    return numbered or dict(side.states)


def broken_promises(cells: Iterable[Cell]) -> Iterator[str]:
    """A sentence for each promised cell that does not hold."""
    for cell in cells:
        if cell.promised and not cell:
            yield f"{cell.sentence}; the kernel set promises that it is equal"


def judge_repeat_cell(cell: Cell) -> Control:
    """The same prompt on the same way twice."""
    return Control(
        name=cell.name,
        variant=cell.variant,
        changed_step=None,
        changed_row=None,
        first_mismatch=cell.step,
        verdict="ok" if cell else "not_repeatable",
        sentence=cell.sentence,
        mode="invariance",
    )


def judge_changed_cell(cell: Cell, changed_step: int) -> Control:
    """A changed token must be seen at its step, and nowhere before."""
    verdict: ControlVerdict
    if cell.step is None:
        verdict, found = "blind", "saw no difference (blind)"
    elif cell.step < changed_step:
        verdict, found = "early", f"step {cell.step} differs, before the change (a leak)"
    elif cell.step > changed_step:
        verdict, found = "late", f"seen only at step {cell.step} (blind at the changed step)"
    else:
        verdict, found = "ok", "seen there, and nowhere before"
    return Control(
        name=f"invariance, {cell.name}",
        variant=cell.variant,
        changed_step=changed_step,
        changed_row=0,
        first_mismatch=cell.step,
        verdict=verdict,
        sentence=f"detection control, {cell.variant}, invariance, {cell.name} at step "
        f"{changed_step}: {found}",
        mode="invariance",
    )
