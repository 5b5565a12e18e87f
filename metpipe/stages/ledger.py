"""ledger: what this process's own boot allocated, against the plan for exactly that boot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from metpipe.circuit import Select
from metpipe.engine.gpu import Gpu, find_gpu
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.memory.evaluate import evaluate
from metpipe.memory.ledger import check_ledger
from metpipe.memory.point import Boot, Point, Workload
from metpipe.memory.record import to_record
from metpipe.memory.registry import read_devices
from metpipe.pipeline import StageContext
from metpipe.report.memory_section import ledger_section
from metpipe.resources import kernels_dir
from metpipe.stages.devices import executing_device
from metpipe.stages.live import Live, live_of
from metpipe.stages.own_plan import own_point
from metpipe.stages.planned_model import planned_model
from metpipe.stages.served import served

__all__ = ["run_ledger"]

SERVED = ForwardSelect("ledger", "circuit", Select.all())
"""The forward that a serve would run: every rule, built-in kernels."""


def run_ledger(context: StageContext) -> Mapping[str, object]:
    """Open the served forward as the diff opens it, and compare every tag with the plan."""
    live = live_of(context)
    model = live.model()
    report = evaluate(_executed_point(live, model))
    forward = model.forward(SERVED)
    try:
        forward.bind_all()
        measured = model.allocator.bytes_by_tag()
    finally:
        forward.close()
    rows = check_ledger(report, measured)
    shown = to_record(report, ledger=rows)["ledger"]
    section = ledger_section(f"this process on {report.device}", cast("list[Any]", shown))
    return {"ledger": section.model_dump(mode="json")}


def _gpu_of(live: Live) -> Gpu | None:
    return find_gpu() if live.sets.device.type == "cuda" else None


def _executed_point(live: Live, model: Model) -> Point:
    """The boot as it was: this machine, the pools' own sizes, the programs that are compiled."""
    sizes = model.sizes
    longest = max(live.all_cases(), key=lambda case: max(case.reserved))
    asked = own_point(live)
    return replace(
        asked,
        planned=planned_model(*served(live), live.sets.builtin.folder.name),
        device=executing_device(read_devices(kernels_dir() / "DEVICES.toml"), _gpu_of(live)),
        workload=Workload(
            isl=max(map(len, longest.prompts)),
            osl=longest.steps,
            concurrency=1,
        ),
        slots=sizes.num_slots,
        slots_follow=False,
        boot=Boot(
            kv_blocks=sizes.num_blocks,
            slots=sizes.num_slots,
            runs=sizes.runs,
            snapshot_rows=sizes.snapshot_rows,
        ),
    )
