"""Expert tables: built where a full serve has room for them, else skipped (section 21)."""

from __future__ import annotations

from dataclasses import replace

from metpipe.memory.evaluate import headroom_at
from metpipe.memory.met.held import side_of
from metpipe.memory.met.prepare import with_setting
from metpipe.memory.met.side import Decision, MetSide, WhatIfs
from metpipe.memory.point import Point, Workload

__all__ = ["SETTING", "decided", "table_bytes"]

SETTING = "moe_expert_tables"


def decided(point: Point) -> Point:
    """The point with its tables built or skipped; as it is where no rule makes any.

    What is asked is whether the serve fits at its ceiling: all its slots, each at full length, and
    no what-if. A range counts by what is certain.

    Raises:
        ConfigError: as an evaluation at the ceiling.
    """
    side = side_of(point)
    tables = table_bytes(side)
    if not tables:
        return point
    ceiling = _ceiling(point)
    built = headroom_at(ceiling)[0]
    skipping = with_setting(side, **{SETTING: "skip"})
    skipped = None if built >= 0 else headroom_at(_with_weights(ceiling, skipping))[0]
    load = ceiling.workload
    decision = Decision(
        tables=tables,
        builds=built >= 0,
        headroom_with=built,
        headroom_without=skipped,
        isl=load.isl,
        osl=load.osl,
        concurrency=load.concurrency,
    )
    chosen = side if decision.builds else skipping
    return replace(point, met=replace(chosen, decision=decision))


def table_bytes(side: MetSide) -> int:
    """What the copies weigh whose rule tests the setting; the rules decide which those are."""
    tables = {rule.id for rule in side.model.rules if SETTING in rule.when}
    return sum(
        copy.bytes for node in side.weights.nodes for copy in node.derived if copy.rule in tables
    )


def _ceiling(point: Point) -> Point:
    serve = point.serve
    concurrency = 1 if point.slots_follow else max(1, serve.max_batch_size)
    return replace(
        point,
        workload=Workload(isl=max(1, serve.max_seq_len - 1), osl=1, concurrency=concurrency),
        slots=None,
        met=replace(side_of(point), what_ifs=WhatIfs(), pools=None, chunk_slack=0),
    )


def _with_weights(point: Point, side: MetSide) -> Point:
    changed = replace(side_of(point), settings=side.settings, weights=side.weights)
    return replace(point, met=changed)
