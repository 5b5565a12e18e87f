"""Where two ways of computing a row part: the first op whose output for that row differs.

Both ways run again under the forward, and the step at which they parted runs launch by launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Cell
from metpipe.engine.forward import BoundStep, Forward
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.step_inputs import RowRun
from metpipe.engine.step_trace import WrittenEdge, first_differing, trace_step
from metpipe.report.diff_section import Localized
from metpipe.stages.invariance.legs import alone_again, run_leg, script_of
from metpipe.stages.invariance.plan import bases, legs
from metpipe.stages.invariance.table import Planned, Table, alone
from metpipe.stages.modes.drive import drive
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.watch import Unwatched

__all__ = ["locate"]


def locate(model: Model, select: ForwardSelect, table: Table, cell: Cell) -> Localized:
    """The op that a broken cell starts at, under the forward that broke it."""
    place = f"{cell.axis}, {cell.name}"
    if cell.step is None or cell.row is None:
        return _found(select, place, cell, None, f"the state parts ({cell.state_diff[0]}), no row")
    forward = model.forward(select)
    try:
        scripted = _scripted(model, forward, table)
        leg = next(one for one in scripted if (one.axis, one.name) == (cell.axis, cell.name))
        key, point = next(item for item in leg.rows if item[1].theirs == (cell.step, cell.row))
        known = next(one for one in scripted if one.case.name == key)
        ours = _edges(model, forward, known, *point.ours)
        theirs = _edges(model, forward, leg, *point.theirs)
    finally:
        forward.close()
    edge = first_differing(ours, theirs)
    at = "before the first step" if cell.step == PREFILL else f"at step {cell.step}"
    where = f"row {cell.row} parts {at}, "
    if edge is None:
        return _found(select, place, cell, None, where + "in no edge that both ways keep in memory")
    return _found(select, place, cell, edge, f"{where}first in {edge.written}")


def _found(
    select: ForwardSelect, place: str, cell: Cell, edge: WrittenEdge | None, text: str
) -> Localized:
    return Localized(
        variant=select.name,
        mode="invariance",
        case=place,
        prompt=None,
        step=cell.step,
        layer=edge.layer if edge else None,
        node=edge.node if edge else "",
        op=edge.op if edge else "",
        rule=edge.rule if edge else None,
        sentence=f"{select.name}, invariance, {place}: {text}",
    )


def _scripted(model: Model, forward: Forward, table: Table) -> list[Planned]:
    """Everything that the table ran, fed the same tokens as before: those of the prompts alone."""
    tokens = [
        tuple(token for (token,) in run_leg(model, forward, case, None, check_steps=False).fed)
        for case in (alone(table, index) for index in range(table.num_alone))
    ]
    by_itself = [alone_again(table, index, fed) for index, fed in enumerate(tokens)]
    return [*by_itself, *bases(table, tokens), *legs(table, tokens)]


def _edges(
    model: Model, forward: Forward, leg: Planned, step: int, row: int
) -> tuple[WrittenEdge, ...]:
    """What one step of a case writes of one row, in the order of its plan."""
    run = Recording(model, forward, leg.case, Unwatched(), check_steps=False)
    observer = _RowObserver(run, step, row)
    forward.observe = observer
    try:
        drive(run, script_of(leg))
    finally:
        forward.observe = None
    return observer.edges


@dataclass(slots=True)
class _RowObserver:
    """Runs a case's steps; the one that gives row `row` of step `step` launch by launch."""

    run: Recording
    step: int
    row: int
    edges: tuple[WrittenEdge, ...] = ()
    _drafts: int = 0
    """passes of the draft head so far"""

    def __call__(self, mode: str, rows: int, runs: Sequence[RowRun], bound: BoundStep) -> None:
        row = self._row_of(mode, rows, runs)
        self._drafts += mode == "draft"
        if row is None:
            bound.run()
            return

        def of_row(content_RE: torch.Tensor) -> torch.Tensor:
            """Its own row; the head of a prefill has the last one's alone."""
            return content_RE[row if len(content_RE) == rows else -1]

        self.edges = trace_step(self.run.model, self.run.forward, mode, rows, of_row)

    def _row_of(self, mode: str, rows: int, runs: Sequence[RowRun]) -> int | None:
        """Which row of this launch is looked for; None: it is in another one."""
        draft = self._draft()
        if draft is not None:
            number, sequence = draft
            return sequence if mode == "draft" and self._drafts == number else None
        if self.step != PREFILL:
            in_step = mode not in ("prefill", "draft") and self.run.num_steps == self.step
            return self.row if in_step else None
        if mode != "prefill" or self.row >= len(self.run.sequences):  # a tenant's, before them
            return None
        (one,) = runs
        ends = one.position + len(one.tokens) == len(self.run.case.prompts[self.row])
        is_it = one.sequence is self.run.sequences[self.row] and ends
        return rows - 1 if is_it else None

    def _draft(self) -> tuple[int, int] | None:
        """Which pass of the head, over the whole case, and which sequence; None: no draft's row.

        The drafts' rows lie behind the prompts' and the bootstrap's, or behind the verify's.
        """
        case = self.run.case
        count = case.num_sequences
        row = self.row - (2 * count if self.step == PREFILL else case.verify_rows)
        if not case.num_drafts or row < 0:
            return None
        draft, sequence = divmod(row, count)
        return (self.step - PREFILL) * case.num_drafts + draft, sequence
