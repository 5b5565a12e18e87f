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
        ours = _by_prompt(sides)
        for leg in planned:
            script = script_of(leg.case, leg.fed, leg.accepted)
            ran = run_leg(model, forward, leg.case, script)
            cell = _cell(select.name, leg, ours, ran.side, leg.axis in promised)
            cells.append(replace(cell, state_diff=_states(leg, sides, ran.side)))
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
