"""invariance: the table of cells under one forward, which decides its own tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from metpipe.diff.invariance import (
    Cell,
    Point,
    Side,
    compare_sides,
    judge_changed_cell,
    judge_repeat_cell,
    own_states,
)
from metpipe.diff.records import Control, MovedBytes
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.pipeline import StageContext
from metpipe.stages.forced import select_of
from metpipe.stages.invariance.legs import Leg, alone_again, run_leg, script_of
from metpipe.stages.invariance.plan import bases, controls, legs
from metpipe.stages.invariance.promises import is_promised, promised_axes
from metpipe.stages.invariance.table import Planned, Table, Tokens, alone
from metpipe.stages.live import live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.unowned import moved_bytes
from metpipe.stages.records import to_json

__all__ = ["run_invariance"]

DRAFT = "draft"
"""The axis, and the section of the head's states: others are not the head's to keep equal."""


def run_invariance(context: StageContext) -> Mapping[str, object]:
    """Every prompt alone, then every leg, each row of it against that prompt's."""
    live, select = live_of(context), select_of(context.params)
    model, table = live.model(), live.invariance_table()
    promised = promised_axes(
        live.sets, model.circuit.arch, overlay=select.overlay, levers=select.levers
    )
    forward = model.forward(select)
    try:
        filled = _Filled(context, model, forward, promised)
        filled.fill(table)
        disclosure = forward.disclose()
    finally:
        forward.close()
    return {
        "cells": to_json(tuple(filled.cells)),
        "repeats": to_json(tuple(filled.repeats)),
        "controls": to_json(tuple(filled.controls)),
        "moved": to_json(tuple(filled.moved)),
        "contradictions": list(dict.fromkeys(filled.contradictions)),
        "disclosure": to_json(disclosure),
    }


@dataclass(slots=True)
class _Filled:
    """The table's cells under one forward, and what moved that no leg owned."""

    context: StageContext
    model: Model
    forward: Forward
    promised: Mapping[str, int]
    cells: list[Cell] = field(default_factory=list)
    repeats: list[Control] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    moved: list[MovedBytes] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    _sides: dict[str, Side] = field(default_factory=dict)
    """of each case that a later leg is held against"""

    def fill(self, table: Table) -> None:
        """The prompts alone decide the tokens; then the changed ones, and every leg."""
        tokens = self._decode_alone(table)
        planned = [*bases(table, tokens), *controls(table, tokens), *legs(table, tokens)]
        needed = {key: number for number, leg in enumerate(planned) for key in leg.against}
        self.context.progress.total(len(planned))
        for number, leg in enumerate(planned):
            self._try(leg)
            for key in [key for key in self._sides if needed.get(key, -1) <= number]:
                del self._sides[key]
            self.context.progress.advance()

    def _try(self, leg: Planned) -> None:
        """Run a leg, once more where that is asked for; a base has no cell."""
        side = self._run(leg.case, script_of(leg)).side
        self._sides[leg.case.name] = side
        if leg.changed_step is not None:
            self.controls.append(judge_changed_cell(self._cell(leg, side), leg.changed_step))
        elif leg.rows:
            self.cells.append(self._cell(leg, side))
        if leg.again:
            self._repeat(leg, leg.case.name, side)

    def _decode_alone(self, table: Table) -> Tokens:
        """Every prompt alone, greedily; the first once more, fed what it chose."""
        tokens = []
        for index in range(table.num_alone):
            case = alone(table, index)
            leg = self._run(case)
            self._sides[case.name] = leg.side
            tokens.append(tuple(token for (token,) in leg.fed))
        self._repeat(alone_again(table, 0, tokens[0]), "alone", self._sides[alone(table, 0).name])
        return tokens

    def _repeat(self, leg: Planned, name: str, before: Side) -> None:
        """The leg as it ran against itself: what differs is no axis, it does not repeat."""
        for number in range(cast("int", self.context.params["repeat"])):
            times = "once more" if number == 0 else f"once more ({number + 1})"
            side = self._run(leg.case, script_of(leg)).side
            cell = compare_sides(
                {name: before},
                side,
                [(name, Point(place, place)) for place in before.rows],
                variant=self.forward.name,
                axis="repeat",
                name=f"{name}, {times}",
                promised=False,
            )
            differing = tuple(
                label for label, digest in before.states.items() if side.states[label] != digest
            )
            self.repeats.append(judge_repeat_cell(replace(cell, state_diff=differing)))

    def _run(self, case: Case, script: Trace | None = None) -> Leg:
        check_steps = self.context.params["state_check"] == "step"
        leg = run_leg(self.model, self.forward, case, script, check_steps=check_steps)
        run = f"invariance, {case.name}"
        moved = moved_bytes(leg.unowned, run=run, variant=self.forward.name)
        if moved is not None:
            self.moved.append(moved)
        self.contradictions += leg.contradictions
        return leg

    def _cell(self, leg: Planned, theirs: Side) -> Cell:
        """The leg's rows, and its states at the end, against those that it must have."""
        cell = compare_sides(
            self._sides,
            theirs,
            leg.rows,
            variant=self.forward.name,
            axis=leg.axis,
            name=leg.name,
            promised=is_promised(self.promised, leg),
        )
        return replace(cell, state_diff=self._state_diff(leg, theirs))

    def _state_diff(self, leg: Planned, theirs: Side) -> tuple[str, ...]:
        """States at the end that are not those of the case they are held against."""
        differing = []
        for key, ours_at, theirs_at in leg.ends:
            ours, found = own_states(self._sides[key], ours_at), own_states(theirs, theirs_at)
            prefix = "" if leg.case.num_sequences == 1 else f"sequence {theirs_at}, "
            differing += [
                prefix + label
                for label, digest in ours.items()
                if self._counts(leg, label) and found[label] != digest
            ]
        return tuple(differing)

    def _counts(self, leg: Planned, label: str) -> bool:
        """Whether the leg's axis speaks of a state."""
        return leg.axis != DRAFT or self.model.circuit.states[label].section == DRAFT
