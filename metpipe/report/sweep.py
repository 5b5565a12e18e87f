"""sweep.json, one row per job, and the table of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from metpipe.errors import Exit
from metpipe.report import outcome
from metpipe.report.console import VERDICT_STYLES
from metpipe.report.diff_section import DiffSection
from metpipe.report.memory_section import MemorySection
from metpipe.report.schema import REPORT, Report
from metpipe.report.shown_case import shown_cases
from metpipe.report.units import count, plain_table, size
from metpipe.whole_file import write_whole

__all__ = ["SWEEP", "rows", "table", "write"]

SWEEP = "sweep.json"
SCHEMA = 1


def write(sweep_dir: Path, console: Console) -> list[Exit]:
    """Write sweep.json, print its table, and return the jobs' statuses; nothing without jobs."""
    jobs = list(rows(sweep_dir))
    if not jobs:
        return []
    record = {"schema": SCHEMA, "jobs": jobs}
    write_whole(sweep_dir / SWEEP, json.dumps(record, indent=1, allow_nan=False) + "\n")
    console.print()
    console.print(table(jobs))
    console.print(Text(f"sweep   {sweep_dir / SWEEP}", style="dim"), soft_wrap=True)
    return [Exit[job["status"]] for job in jobs]


def rows(sweep_dir: Path) -> Iterator[dict[str, Any]]:
    """One row per job in their order, also for a job that died before its report."""
    folders = [path.parent.parent for path in sweep_dir.glob("*/.hydra/overrides.yaml")]
    for folder in sorted(folders, key=_number):
        ended = outcome.read(folder)
        row: dict[str, Any] = {
            "job": folder.name,
            "overrides": list(ended.overrides),
            "status": ended.status.name,
            "exit": int(ended.status),
            "error": ended.error,
        }
        yield row | _of_report(Report.read(folder) if (folder / REPORT).is_file() else None)


def _number(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdigit() else -1, folder.name)


def _of_report(report: Report | None) -> dict[str, Any]:
    if report is None:
        return dict.fromkeys(("id", "reasons", "executed_on", "planned_for", "diff", "memory"))
    return {
        "id": report.provenance.id,
        "reasons": list(report.reasons),
        "executed_on": report.executed_on and report.executed_on.device,
        "planned_for": report.planned_for and report.planned_for.device,
        "diff": report.diff and _diff(report.diff),
        "memory": report.memory and _memory(report.memory),
    }


def _diff(diff: DiffSection) -> dict[str, Any]:
    """Judged comparisons over all prompts and cases; the reference's repeats are none."""
    found = [c for case in shown_cases(diff) for c in case.comparisons if c.expect == "equal"]
    judged = [c for c in found if c.variant not in diff.repeat_variants]
    return {
        "mode": diff.mode,
        "compared_steps": sum(c.steps for c in judged),
        "mismatched_steps": sum(c.mismatched_steps for c in judged),
        "prefills_differ": sum(not c.prefill_equal for c in judged),
    }


def _memory(memory: MemorySection) -> dict[str, Any]:
    totals = memory.totals.model_dump(mode="json")
    return totals | {name: query.surely for name, query in memory.inverse.items()}


def table(jobs: list[dict[str, Any]]) -> Table:
    """What varies between the jobs, then what came of each."""
    varying = _varying(jobs)
    shown = plain_table(f"Sweep of {len(jobs)} jobs", "job")
    for name in varying:
        shown.add_column(name, no_wrap=True)
    shown.add_column("status", no_wrap=True)
    has_diff = any(job["diff"] for job in jobs)
    has_memory = any(job["memory"] for job in jobs)
    for name in ("steps differ",) * has_diff + (
        *("total", "headroom", "answer", "max sequences", "max prompt") * has_memory,
    ):
        shown.add_column(name, justify="right", no_wrap=True)
    shown.add_column("error", overflow="fold")
    for job in jobs:
        cells = [_overrides(job).get(name, "") for name in varying]
        status = Text(job["status"], style=VERDICT_STYLES[job["status"]])
        facts = (*_diff_cells(job) * has_diff, *_memory_cells(job) * has_memory)
        shown.add_row(job["job"], *cells, status, *facts, _why(job))
    return shown


def _overrides(job: dict[str, Any]) -> dict[str, str]:
    pairs = (override.partition("=") for override in job["overrides"])
    return {key: value for key, _, value in pairs}


def _varying(jobs: list[dict[str, Any]]) -> list[str]:
    """Keys whose value isn't the same in every job, in the order that they were typed."""
    typed = [_overrides(job) for job in jobs]
    keys = list(dict.fromkeys(key for overrides in typed for key in overrides))
    return [key for key in keys if len({overrides.get(key) for overrides in typed}) > 1]


def _diff_cells(job: dict[str, Any]) -> tuple[str]:
    diff = job["diff"]
    return ("-" if diff is None else f"{diff['mismatched_steps']} of {diff['compared_steps']}",)


def _memory_cells(job: dict[str, Any]) -> tuple[str, ...]:
    memory = job["memory"]
    if memory is None:
        return ("-",) * 5
    return (
        size(memory["high"]),
        size(memory["headroom_low"]),
        memory["answer"],
        count(memory["max_concurrency"]),
        count(memory["max_isl"]),
    )


def _why(job: dict[str, Any]) -> str:
    """The error or the first reason, in a line."""
    said = job["error"] or next(iter(job["reasons"] or ()), "")
    return next(iter(said.splitlines()), "")
