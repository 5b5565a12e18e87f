"""invariance: the table of cells under one forward, which decides its own tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from metpipe.diff.invariance import (
    Cell,
    Side,
    compare_sides,
    judge_changed_cell,
    judge_repeat_cell,
)
from metpipe.diff.records import MovedBytes
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.pipeline import StageContext
from metpipe.stages.forced import select_of
from metpipe.stages.invariance.legs import Leg, run_leg, script_of
from metpipe.stages.invariance.plan import Planned, Table, alone, changed, legs, repeated
from metpipe.stages.invariance.promises import promised_axes
from metpipe.stages.live import live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.unowned import moved_bytes
from metpipe.stages.records import to_json

__all__ = ["run_invariance"]


def run_invariance(context: StageContext) -> Mapping[str, object]:
    """Every prompt alone, then every leg, each row of it against that prompt's."""
    live, select = live_of(context), select_of(context.params)
    model, table = live.model(), live.invariance_table()
    promised = promised_axes(live.sets, model.circuit.arch, overlay=select.overlay)
    forward = model.forward(select)
    try:
        filled = _Filled(context, model, forward, promised)
        filled.fill(table)
        disclosure = forward.disclose()
    finally:
        forward.close()
    repeat, detection, *axes = filled.cells
    return {
        "cells": to_json(tuple(axes)),
        "repeat": to_json(judge_repeat_cell(repeat)),
        "control": to_json(judge_changed_cell(detection, table.changed_step)),
        "moved": to_json(tuple(filled.moved)),
        "disclosure": to_json(disclosure),
    }


@dataclass(slots=True)
class _Filled:
    """The table's cells under one forward, and what moved that no leg owned."""

    context: StageContext
    model: Model
    forward: Forward
    promised: Collection[str]
    cells: list[Cell] = field(default_factory=list)
    moved: list[MovedBytes] = field(default_factory=list)

    def fill(self, table: Table) -> None:
        """The prompts alone decide the tokens; then the repeat, the change and the legs."""
        first = [alone(table, index) for index in range(table.num_alone)]
        by_itself = [self._run(case) for case in first]
        tokens = [tuple(token for (token,) in leg.fed) for leg in by_itself]
        planned = [repeated(table, tokens), changed(table, tokens), *legs(table, tokens)]
        self.context.progress.total(len(planned))
        sides = [leg.side for leg in by_itself]
        ours = _by_prompt(sides)
        for leg in planned:
            ran = self._run(leg.case, script_of(leg.case, leg.fed, leg.accepted))
            cell = _cell(self.forward.name, leg, ours, ran.side, leg.axis in self.promised)
            self.cells.append(replace(cell, state_diff=_states(leg, sides, ran.side)))
            self.context.progress.advance()

    def _run(self, case: Case, script: Trace | None = None) -> Leg:
        check_steps = self.context.params["state_check"] == "step"
        leg = run_leg(self.model, self.forward, case, script, check_steps=check_steps)
        run = f"invariance, {case.name}"
        moved = moved_bytes(leg.unowned, run=run, variant=self.forward.name)
        if moved is not None:
            self.moved.append(moved)
        return leg


def _by_prompt(sides: Sequence[Side]) -> Side:
    """The prompts alone as one side: (step, prompt) instead of (step, row)."""
    return Side(
        {
            (step, prompt): row
            for prompt, side in enumerate(sides)
            for (step, _), row in side.rows.items()
        },
        {},
    )


def _cell(variant: str, leg: Planned, ours: Side, theirs: Side, promised: bool) -> Cell:
    """The leg's rows against those of the prompts alone."""
    points = [replace(point, ours=(point.ours[0], prompt)) for prompt, point in leg.rows]
    return compare_sides(
        ours,
        theirs,
        points,
        variant=variant,
        axis=leg.axis,
        name=leg.name,
        promised=promised,
    )


def _states(leg: Planned, alone_sides: Sequence[Side], theirs: Side) -> tuple[str, ...]:
    """States at the end that are not those of the prompt alone."""
    differing = []
    for prompt, sequence in leg.ends:
        prefix = "" if leg.case.num_sequences == 1 else f"sequence {sequence}, "
        for label, digest in alone_sides[prompt].states.items():
            if theirs.states[prefix + label] != digest:
                differing.append(prefix + label)
    return tuple(differing)
