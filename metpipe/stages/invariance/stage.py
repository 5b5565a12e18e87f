"""invariance: the table of cells under one forward, which decides its own tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metpipe.diff.invariance import (
    Cell,
    Side,
    compare_sides,
    judge_changed_cell,
    judge_repeat_cell,
)
from metpipe.pipeline import StageContext
from metpipe.stages.forced import select_of
from metpipe.stages.invariance.legs import run_leg, script_of
from metpipe.stages.invariance.plan import Planned, alone, changed, legs, repeated
from metpipe.stages.invariance.promises import promised_axes
from metpipe.stages.live import live_of
from metpipe.stages.records import to_json

__all__ = ["run_invariance"]


def run_invariance(context: StageContext) -> Mapping[str, object]:
    """Every prompt alone, then every leg, each row of it against that prompt's."""
    live, model, select = live_of(context), live_of(context).model(), select_of(context.params)
    table = live.invariance_table()
    promised = promised_axes(live.sets, model.circuit.arch, overlay=select.overlay)
    forward = model.forward(select)
    cells = []
    try:
        by_itself = [
            run_leg(model, forward, alone(table, index)) for index in range(table.num_prompts)
        ]
        tokens = [tuple(token for (token,) in leg.fed) for leg in by_itself]
        change, changed_step = changed(table, tokens, model.vocab_size)
        planned = [repeated(table, tokens), change, *legs(table, tokens)]
        context.progress.total(len(planned))
        sides = [leg.side for leg in by_itself]
        for leg in planned:
            script = script_of(leg.case, leg.fed, leg.accepted)
            ran = run_leg(model, forward, leg.case, script)
            cells.append(_cell(select.name, leg, sides, ran.side, leg.axis in promised))
            context.progress.advance()
        repeat, detection, *axes = cells
        return {
            "cells": to_json(tuple(axes)),
            "repeat": to_json(judge_repeat_cell(repeat)),
            "control": to_json(judge_changed_cell(detection, changed_step)),
            "disclosure": to_json(forward.disclose()),
        }
    finally:
        forward.close()


def _cell(
    variant: str, leg: Planned, alone_sides: Sequence[Side], theirs: Side, promised: bool
) -> Cell:
    """Ours are the prompts alone, told apart by their number before the step."""
    ours = Side(
        {
            (step, prompt): row
            for prompt, side in enumerate(alone_sides)
            for (step, _), row in side.rows.items()
        },
        {},
    )
    points = [replace(point, ours=(point.ours[0], prompt)) for prompt, point in leg.rows]
    cell = compare_sides(
        ours,
        theirs,
        points,
        variant=variant,
        axis=leg.axis,
        name=leg.name,
        promised=promised,
    )
    return replace(cell, state_diff=_states(leg, alone_sides, theirs))


def _states(leg: Planned, alone_sides: Sequence[Side], theirs: Side) -> tuple[str, ...]:
    """States at the end that are not those of the prompt alone."""
    differing = []
    for prompt, sequence in leg.ends:
        prefix = "" if leg.case.num_sequences == 1 else f"sequence {sequence}, "
        for label, digest in alone_sides[prompt].states.items():
            if theirs.states[prefix + label] != digest:
                differing.append(prefix + label)
    return tuple(differing)
