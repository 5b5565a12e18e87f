"""grid: the headroom of many loads of one serve, in one process."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.config import Run
from metpipe.memory.evaluate import evaluate
from metpipe.memory.grid import Loads, Room, grid_of
from metpipe.pipeline import StageContext
from metpipe.report.grid_section import GridSection
from metpipe.stages.live import live_of
from metpipe.stages.memory import point_of

__all__ = ["loads_asked", "run_grid"]

TOLD_EACH = 100
"""Loads between two steps of the progress bar."""


def run_grid(context: StageContext) -> Mapping[str, object]:
    """Evaluate every load of the run's grid."""
    live = live_of(context)
    point, loads = point_of(live), loads_asked(live.run)
    context.progress.total(len(loads))
    rooms: list[Room | None] = []
    for room in grid_of(point, loads):
        rooms.append(room)
        if not len(rooms) % TOLD_EACH:
            context.progress.advance(TOLD_EACH)
    section = GridSection(
        device=point.device.id,
        budget=evaluate(point).budget,
        isl=loads.isl,
        osl=loads.osl,
        concurrency=loads.concurrency,
        headroom_low=tuple(None if room is None else room[0] for room in rooms),
        headroom_high=tuple(None if room is None else room[1] for room in rooms),
    )
    return {"grid": section.model_dump(mode="json")}


def loads_asked(run: Run) -> Loads:
    """The run's grid; an axis that is not given has the workload's own value."""
    grid, load = run.grid, run.workload
    return Loads(
        isl=grid.isl or (load.isl,),
        osl=grid.osl or (load.osl,),
        concurrency=grid.concurrency or (load.concurrency,),
    )
