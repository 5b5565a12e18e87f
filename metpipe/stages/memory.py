"""memory: plans a serve's bytes for the hardware's device, and asks the inverse questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from metpipe.circuit import class_sizes_of
from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.memory.attribution import node_shares
from metpipe.memory.evaluate import evaluate
from metpipe.memory.fixes import fixes, switches
from metpipe.memory.idle_flags import Idle, idle_flags, refuse_typed
from metpipe.memory.inverse import answered
from metpipe.memory.met.header import header
from metpipe.memory.point import Point
from metpipe.memory.queries import questions
from metpipe.memory.ranks import rank_point
from metpipe.memory.record import to_record
from metpipe.pipeline import StageContext
from metpipe.report.memory_section import memory_section
from metpipe.resources import kernels_dir
from metpipe.stages.devices import planned_for
from metpipe.stages.live import Live, live_of
from metpipe.stages.met_plan import met_point
from metpipe.stages.own_plan import max_positions, on_other_devices, own_point

__all__ = ["point_of", "run_memory"]


def run_memory(context: StageContext) -> Mapping[str, object]:
    """Evaluate the load, ask every inverse question, and try what would make it fit."""
    live = live_of(context)
    point = point_of(live)
    asked = questions(point, on_other_devices(live, point))
    context.progress.total(1 + len(asked))
    report = evaluate(point)
    context.progress.advance()
    answers = []
    for question in asked:
        answers.append(answered(question))
        context.progress.advance()
    tried = () if report.answer == "fits" else tuple(switches(point))
    mended = fixes(
        report.answer, (*asked, *tried), (*answers, *(answered(question) for question in tried))
    )
    record = to_record(
        report,
        tuple(answers),
        notes=tuple(_notes(live)),
        shares=node_shares(rank_point(point, report), report),
        facts={} if point.met is None else header(point),
        fixes=mended,
    )
    section = memory_section(record, live.run.workload.model_dump())
    return {
        "memory": section.model_dump(mode="json", by_alias=True),
        "planned_for": planned_for(point.device, report.kernel_set).model_dump(mode="json"),
    }


def _notes(live: Live) -> Iterator[str]:
    if (note := live.run.model.note) is not None:
        yield note
    for idle in _idle(live):
        yield f"{idle.key}={idle.value} sizes nothing here: {idle.why}"
    checkpoint = live.checkpoint()
    if left := class_sizes_of(checkpoint.config, kernels_dir(), checkpoint.source):
        listed = ", ".join(f"{key}={size}" for key, size in left.items())
        yield f"the config does not state {listed}: the sizes of the model's class"
    arch = live.circuit().arch
    if arch not in LEGACY_FAMILIES and live.run.memory.accounting == "metpipe":
        yield (
            f"the family {arch} is planned but not executed by this version: no allocation has "
            "confirmed these terms"
        )


def point_of(live: Live) -> Point:
    """The run's question to the evaluator, in the accounting that it names.

    Raises:
        ConfigError: what it cannot plan; a flag that was typed and sizes nothing.
    """
    refuse_typed(_idle(live), live.typed)
    if live.run.memory.accounting == "met":
        return replace(met_point(live), max_positions=max_positions(live.checkpoint().config))
    return own_point(live)


def _idle(live: Live) -> tuple[Idle, ...]:
    run = live.run
    return idle_flags(run.serve.model_dump(), live.circuit(), run.memory.accounting)
