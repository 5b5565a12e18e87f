"""The report of a sweep: sweep.json from what its jobs left, the tables, the plots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from metpipe.errors import Exit
from metpipe.report import outcome, sweep_plot, sweep_table
from metpipe.report.diff_section import DiffSection
from metpipe.report.memory_section import MemorySection
from metpipe.report.picture_file import can_draw
from metpipe.report.schema import REPORT, Report
from metpipe.report.shown_case import shown_cases
from metpipe.report.sweep_record import (
    SWEEP,
    DiffRow,
    JobRow,
    Limit,
    MemoryRow,
    SweepRecord,
    TermRow,
)

__all__ = ["SWEEP", "rows", "write"]


def write(
    sweep_dir: Path,
    console: Console,
    planned: Sequence[Sequence[str]] = (),
    *,
    interrupted: bool = False,
) -> list[Exit]:
    """Write sweep.json and its plots, print its tables, and return the jobs' statuses.

    `planned` are the overrides of every job that the sweep has, so that one which never started is
    a row too. A sweep of which no job has started leaves nothing.
    """
    jobs = tuple(rows(sweep_dir, planned, interrupted=interrupted))
    if not jobs:
        return []
    sweep = SweepRecord(jobs=jobs)
    path = sweep.write(sweep_dir)
    console.print()
    for part in sweep_table.parts(sweep):
        console.print(part, crop=False)
    console.print()
    _line(console, "sweep", str(path))
    _plot(sweep, sweep_dir, console)
    return [Exit[job.status] for job in jobs]


def _plot(sweep: SweepRecord, sweep_dir: Path, console: Console) -> None:
    if not sweep_plot.worth_drawing(sweep):
        return
    if not can_draw():
        how = f"pip install 'metpipe[plot]', then metpipe sweep={sweep_dir}"
        _line(console, "plot", f"none without matplotlib: {how}")
        return
    for path in sweep_plot.draw(sweep, sweep_dir):
        _line(console, "plot", str(path))


def _line(console: Console, name: str, text: str) -> None:
    console.print(Text(f"{name:<7} {text}", style="dim"), soft_wrap=True)


def rows(
    sweep_dir: Path, planned: Sequence[Sequence[str]] = (), *, interrupted: bool = False
) -> Iterator[JobRow]:
    """One row per job in their order, also for a job that died before its report or its start.

    A job without an outcome has died, or was interrupted with its sweep.
    """
    folders = {path.parent.parent for path in sweep_dir.glob("*/.hydra/overrides.yaml")}
    if not folders:
        return
    by_number = all(folder.name.isdigit() for folder in folders)
    if planned and by_number:  # else a folder's name doesn't tell which job it is
        folders |= {sweep_dir / str(number) for number in range(len(planned))}
    for folder in sorted(folders, key=_number):
        asked = planned[int(folder.name)] if planned and by_number else ()
        yield _row(folder, tuple(asked), interrupted=interrupted)


def _number(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdigit() else -1, folder.name)


def _row(folder: Path, asked: tuple[str, ...], *, interrupted: bool) -> JobRow:
    ended = outcome.read(folder)
    if not (folder / outcome.OUTCOME).is_file():
        started = "ended" if folder.is_dir() else "started"
        if interrupted:
            ended = outcome.Outcome(
                Exit.INTERRUPTED, f"interrupted before it {started}", ended.overrides
            )
        elif started == "started":
            ended = ended._replace(error="the job never started")
    report, error = None, ended.error
    if (folder / REPORT).is_file():
        try:
            report = Report.read(folder)
        except ValidationError as wrong:  # edited, or of another version
            first = wrong.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            error = f"{folder / REPORT} can't be read: {where}: {first['msg']}"
    facts = {
        "job": folder.name,
        "overrides": ended.overrides or asked,
        "status": ended.status.name,
        "exit": int(ended.status),
        "error": error,
    }
    return JobRow.model_validate(facts | ({} if report is None else _of_report(report)))


def _of_report(report: Report) -> dict[str, object]:
    return {
        "id": report.provenance.id,
        "model": report.model,
        "reasons": report.reasons,
        "executed_on": report.executed_on and report.executed_on.device,
        "planned_for": report.planned_for and report.planned_for.device,
        "diff": report.diff and _diff(report.diff),
        "memory": report.memory and _memory(report.memory),
    }


def _diff(diff: DiffSection) -> DiffRow:
    """Judged comparisons over all prompts and cases; the reference's repeats are none."""
    found = [c for case in shown_cases(diff) for c in case.comparisons if c.expect == "equal"]
    judged = [c for c in found if c.variant not in diff.repeat_variants]
    return DiffRow(
        mode=diff.mode,
        compared_steps=sum(c.steps for c in judged),
        mismatched_steps=sum(c.mismatched_steps for c in judged),
        prefills_differ=sum(not c.prefill_equal for c in judged),
    )


def _memory(memory: MemorySection) -> MemoryRow:
    return MemoryRow(
        accounting=memory.header.accounting,
        device=memory.header.device,
        workload=memory.workload,
        ranks=memory.ranks[-1].last + 1 if memory.ranks else 1,
        terms=tuple(
            TermRow(id=term.id, low=term.low, high=term.high, status=term.status)
            for term in memory.terms
        ),
        **memory.totals.model_dump(),
        limits=dict(_limits(memory)),
        expert_tables=_tables(memory.header.facts.get("expert tables")),
    )


def _limits(memory: MemorySection) -> Iterator[tuple[str, Limit]]:
    for name in ("max_concurrency", "max_isl"):
        query = memory.inverse.get(name)
        if query is not None and not query.why:
            ends = query.model_dump(include=set(Limit.model_fields))
            yield name, Limit.model_validate(ends)


def _tables(said: str | None) -> str | None:
    """`built, 16.9 GiB` of a report's line on the tables of the experts."""
    if said is None or said == "none":
        return None
    found = re.match(r"(build|skip): ([\d.]+) MiB", said)
    if found is None:
        return said.partition(",")[0]
    done = {"build": "built", "skip": "skipped"}[found[1]]
    return f"{done}, {float(found[2]) / 1024:.1f} GiB"
