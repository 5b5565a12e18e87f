"""memory: plans a serve's bytes for the hardware's device, and asks the inverse questions."""

from __future__ import annotations

import json
from collections.abc import Mapping

from metpipe.circuit import Circuit, Select
from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.memory.evaluate import evaluate
from metpipe.memory.inverse import max_concurrency, max_isl
from metpipe.memory.kernel_set import read_kernel_set
from metpipe.memory.planned import Planned
from metpipe.memory.point import Point, Workload
from metpipe.memory.record import to_record
from metpipe.memory.serve import serve_from_config
from metpipe.pipeline import StageContext
from metpipe.report.memory_section import memory_section
from metpipe.resources import kernels_dir
from metpipe.stages.devices import planned_device, planned_for
from metpipe.stages.live import Live, live_of
from metpipe.stages.served import served

__all__ = ["planned_model", "point_of", "run_memory"]


def run_memory(context: StageContext) -> Mapping[str, object]:
    """Evaluate the workload, then the most sequences and the longest prompt that fit."""
    live = live_of(context)
    context.progress.total(3)
    point = point_of(live)
    report = evaluate(point)
    context.progress.advance()
    inverse = []
    for query in (max_concurrency, max_isl):
        inverse.append(query(point))
        context.progress.advance()
    record = to_record(report, tuple(inverse), notes=_notes(live.circuit().arch))
    section = memory_section(record, live.run.workload.model_dump())
    return {
        "memory": section.model_dump(mode="json", by_alias=True),
        "planned_for": planned_for(point.device, report.kernel_set).model_dump(mode="json"),
    }


def _notes(arch: str) -> tuple[str, ...]:
    if arch in LEGACY_FAMILIES:
        return ()
    return (
        f"the family {arch} is planned but not executed by this version: no allocation has "
        "confirmed these terms",
    )


def point_of(live: Live) -> Point:
    """The run's question to the evaluator."""
    run, load = live.run, live.run.workload
    return Point(
        planned=planned_model(*served(live)),
        device=planned_device(run),
        serve=serve_from_config(run.serve.model_dump()),
        workload=Workload(load.isl, load.osl, load.concurrency),
        accounting=run.memory.accounting,
        slots=run.slots,
    )


PLANNED: dict[str, Planned] = {}
"""The last model planned, for a sweep's next job: plans and arenas are its costly part."""


def planned_model(config: Mapping[str, object], circuit: Circuit) -> Planned:
    """The circuit with its plans and arenas, as the serve's own forward uses them (every rule)."""
    key = json.dumps(config, sort_keys=True, default=str)
    if key not in PLANNED:
        PLANNED.clear()
        PLANNED[key] = Planned(circuit, read_kernel_set(kernels_dir() / "cpu"), Select.all())
    return PLANNED[key]
