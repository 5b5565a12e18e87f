"""memory: plans a serve's bytes for the hardware's device, and asks the inverse questions."""

from __future__ import annotations

from collections.abc import Mapping

from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.memory.attribution import node_shares
from metpipe.memory.devices import Device
from metpipe.memory.evaluate import evaluate
from metpipe.memory.inverse import max_concurrency, max_isl
from metpipe.memory.met.header import header
from metpipe.memory.point import Point, Workload
from metpipe.memory.record import to_record
from metpipe.memory.serve import serve_from_config
from metpipe.pipeline import StageContext
from metpipe.report.memory_section import memory_section
from metpipe.stages.devices import planned_device, planned_for
from metpipe.stages.live import Live, live_of
from metpipe.stages.met_plan import met_point
from metpipe.stages.planned_model import planned_model
from metpipe.stages.served import served

__all__ = ["own_point", "point_of", "run_memory"]


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
    record = to_record(
        report,
        tuple(inverse),
        notes=_notes(live),
        shares=node_shares(point, report),
        facts={} if point.met is None else header(point),
    )
    section = memory_section(
        record, live.run.workload.model_dump(), per_node=live.run.memory.per_node
    )
    return {
        "memory": section.model_dump(mode="json", by_alias=True),
        "planned_for": planned_for(point.device, report.kernel_set).model_dump(mode="json"),
    }


def _notes(live: Live) -> tuple[str, ...]:
    arch = live.circuit().arch
    if arch in LEGACY_FAMILIES or live.run.memory.accounting != "metpipe":
        return ()
    return (
        f"the family {arch} is planned but not executed by this version: no allocation has "
        "confirmed these terms",
    )


def point_of(live: Live) -> Point:
    """The run's question to the evaluator, in the accounting that it names."""
    return met_point(live) if live.run.memory.accounting == "met" else own_point(live)


def own_point(live: Live) -> Point:
    """The run's question about this engine."""
    run, load = live.run, live.run.workload
    device = planned_device(run)
    return Point(
        planned=planned_model(*served(live), kernel_set=_set_for(live, device)),
        device=device,
        serve=serve_from_config(run.serve.model_dump()),
        workload=Workload(load.isl, load.osl, load.concurrency),
        slots=run.num_slots,
        slots_follow=run.slots_follow,
    )


def _set_for(live: Live, device: Device) -> str:
    """The set that executes, where memory is planned for its class; else the CPU's."""
    own = live.sets.builtin
    return own.folder.name if own.hardware.hardware_class == device.device_class else "cpu"
