"""Where two ways of computing a row part: the first op whose output for that row differs.

Both ways run again under the forward, and the step at which they parted runs launch by launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Cell
from metpipe.diff.trace import Trace
from metpipe.engine.forward import BoundStep, Forward
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.step_inputs import RowRun
from metpipe.engine.step_trace import WrittenEdge, first_differing, trace_step
from metpipe.report.diff_section import Localized
from metpipe.stages.invariance.legs import run_leg, script_of
from metpipe.stages.invariance.plan import Planned, Table, alone, legs
from metpipe.stages.modes.case import Case
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
        leg = _leg(model, forward, table, cell)
        prompt, point = next(item for item in leg.rows if item[1].theirs == (cell.step, cell.row))
        own = script_of(alone(table, prompt), _alone_fed(model, forward, table, prompt))
        ours = _edges(model, forward, alone(table, prompt), own, *point.ours)
        script = script_of(leg.case, leg.fed, leg.accepted)
        theirs = _edges(model, forward, leg.case, script, *point.theirs)
    finally:
        forward.close()
    edge = first_differing(ours, theirs)
    at = "before the first step" if cell.step == PREFILL else f"at step {cell.step}"
    where = f"row {cell.row} parts {at}, "
    if edge is None:
        return _found(select, place, cell, None, where + "in no edge that both ways keep in memory")
    members = ", ".join(edge.members)
    text = f"first in {edge.edge} ({edge.op}), written by the rule {edge.rule} over {members}"
    return _found(select, place, cell, edge, where + text)


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


def _leg(model: Model, forward: Forward, table: Table, cell: Cell) -> Planned:
    """The cell's leg, fed the same tokens as before: those of the prompts alone."""
    tokens = [
        tuple(token for (token,) in _alone_fed(model, forward, table, index))
        for index in range(table.num_alone)
    ]
    return next(
        leg for leg in legs(table, tokens) if (leg.axis, leg.name) == (cell.axis, cell.name)
    )


def _alone_fed(
    model: Model, forward: Forward, table: Table, index: int
) -> tuple[tuple[int, ...], ...]:
    return run_leg(model, forward, alone(table, index), None, check_steps=False).fed


def _edges(
    model: Model, forward: Forward, case: Case, script: Trace, step: int, row: int
) -> tuple[WrittenEdge, ...]:
    """What one step of a case writes of one row, in the order of its plan."""
    run = Recording(model, forward, case, Unwatched(), check_steps=False)
    observer = _RowObserver(run, step, row)
    forward.observe = observer
    try:
        drive(run, script)
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

    def __call__(self, mode: str, rows: int, runs: Sequence[RowRun], bound: BoundStep) -> None:
        if not self._is_it(mode, runs):
            bound.run()
            return
        row = rows - 1 if mode == "prefill" else self.row

        def of_row(content_RE: torch.Tensor) -> torch.Tensor:
            """Its own row; the head of a prefill has the last one's alone."""
            return content_RE[row if len(content_RE) == rows else -1]

        self.edges = trace_step(self.run.model, self.run.forward, mode, rows, of_row)

    def _is_it(self, mode: str, runs: Sequence[RowRun]) -> bool:
        if self.step != PREFILL:
            return mode != "prefill" and self.run.num_steps == self.step
        if mode != "prefill" or self.row >= len(self.run.sequences):  # a tenant's, before them
            return False
        (one,) = runs
        prompt = self.run.case.prompts[self.row]
        ends = one.position + len(one.tokens) == len(prompt)
        return one.sequence is self.run.sequences[self.row] and ends
