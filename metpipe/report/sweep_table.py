"""A sweep on the console: a row per job, then which jobs fit over two swept numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from metpipe.memory.report import Status
from metpipe.nouns import number_of
from metpipe.report.console import VERDICT_STYLES
from metpipe.report.memory_tables import ANSWER_STYLES
from metpipe.report.sweep_axes import Axis, axes, fixed, typed
from metpipe.report.sweep_record import JobRow, MemoryRow, SweepRecord
from metpipe.report.units import SCALES, count, indented, plain_table

__all__ = ["grid", "parts", "table"]

GRID_COLUMNS = 10
"""A grid with more columns than this is wider than a terminal."""
WIDEST = 1000
"""Columns of letters; more than any table has."""
REASONS = 8
"""So many different reasons are told on the console, and so many jobs named with one."""
STATUSES: tuple[Status, ...] = ("exact", "calibrated", "uncalibrated")
Cell: TypeAlias = str | Text
Column: TypeAlias = tuple[str, Callable[[JobRow], Cell]]


def parts(sweep: SweepRecord) -> Iterator[RenderableType]:
    """The tables, and what all jobs have alike."""
    jobs, swept = sweep.jobs, axes(sweep.jobs)
    yield table(jobs, swept)
    yield from (indented(line, "red") for line in _reasons(jobs))
    yield from (indented(line, "dim") for line in _alike(jobs))
    if (what_fits := grid(jobs, swept)) is not None:
        yield Text()
        yield what_fits


def table(jobs: Sequence[JobRow], swept: Sequence[Axis]) -> Table:
    """What varies between the jobs, then what came of each; so wide that no value is cut."""
    all_pass = all(job.status == "PASS" for job in jobs)
    title = f"Sweep of {number_of(len(jobs), 'job')}{', each a PASS' if all_pass else ''}"
    shown = plain_table(title, "job")
    for axis, name in zip(swept, _short([axis.key for axis in swept]), strict=True):
        _add(shown, name, is_number=axis.numeric)
    columns = [*([] if all_pass else [("status", _status)]), *_columns(jobs)]
    for name, _ in columns:
        _add(shown, name, is_number=name not in WORDS)
    for job in jobs:
        at = typed(job)
        cells = [at.get(axis.key, "") for axis in swept]
        shown.add_row(job.job, *cells, *(fact(job) for _, fact in columns))
    wide = Console(width=WIDEST)
    shown.width = Measurement.get(wide, wide.options, shown).maximum
    return shown


def _add(shown: Table, name: str, *, is_number: bool) -> None:
    shown.add_column(name, justify="right" if is_number else "left", no_wrap=True)


def _status(job: JobRow) -> Cell:
    return Text(job.status, style=VERDICT_STYLES[job.status])


def _short(keys: Sequence[str]) -> list[str]:
    """The last part of each key, where that is enough to tell them apart.

    A grid's keys are whole: a row's plan is of the workload, not of the grid.
    """
    tails = [key if key.startswith("grid.") else key.rpartition(".")[2] for key in keys]
    return tails if len(set(tails)) == len(tails) else list(keys)


WORDS = ("status", "answer", "expert\ntables")
"""Columns that hold no numbers."""


def _columns(jobs: Sequence[JobRow]) -> Iterator[Column]:
    if any(job.diff for job in jobs):
        yield "steps\ndiffer", _steps
    plans = _plans(jobs)
    if not plans:
        return
    scale = Scale.of(plans)
    yield f"total,\n{scale.unit}", _of_plan(lambda plan: scale.span(plan.low, plan.high))
    if len({plan.budget for plan in plans}) > 1:
        yield f"budget,\n{scale.unit}", _of_plan(lambda plan: scale.of_bytes(plan.budget))
    yield f"headroom,\n{scale.unit}", _of_plan(lambda plan: scale.of_bytes(plan.headroom_low))
    yield "answer", _of_plan(lambda plan: Text(plan.answer, style=ANSWER_STYLES[plan.answer]))
    for name, query in (("most\nsequences", "max_concurrency"), ("longest\nprompt", "max_isl")):
        yield name, _of_plan(lambda plan, query=query: _most(plan, query))  # type: ignore[misc]
    if len({plan.expert_tables for plan in plans}) > 1:
        yield "expert\ntables", _of_plan(lambda plan: plan.expert_tables or "-")


def _of_plan(fact: Callable[[MemoryRow], Cell]) -> Callable[[JobRow], Cell]:
    return lambda job: "-" if job.memory is None else fact(job.memory)


def _steps(job: JobRow) -> str:
    diff = job.diff
    return "-" if diff is None else f"{diff.mismatched_steps} of {diff.compared_steps}"


def _most(plan: MemoryRow, query: str) -> str:
    answer = plan.limits.get(query)
    return count(answer.surely if answer else None)


def _reasons(jobs: Sequence[JobRow]) -> Iterator[str]:
    """Why jobs are not PASS: the first line of each error or reason, and which jobs have it."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        said = job.error or next(iter(job.reasons), "")
        if said:
            found.setdefault(said.splitlines()[0], []).append(f"#{job.job}")
    for said, numbers in list(found.items())[:REASONS]:
        yield f"{_few(numbers)}: {said}"
    if len(found) > REASONS:
        yield f"{len(found) - REASONS} more reasons in sweep.json"


def _few(numbers: Sequence[str]) -> str:
    shown = " ".join(numbers[:REASONS])
    return shown if len(numbers) <= REASONS else f"{shown} and {len(numbers) - REASONS} more"


def _plans(jobs: Sequence[JobRow]) -> list[MemoryRow]:
    return [job.memory for job in jobs if job.memory is not None]


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit that all sizes of a sweep are told in, and how many digits behind the point."""

    unit: str
    bytes: int
    digits: int

    @classmethod
    def of(cls, plans: Sequence[MemoryRow]) -> Scale:
        """The largest unit of which every total has at least one."""
        least, most = min(plan.high for plan in plans), max(plan.high for plan in plans)
        fitting = ((unit, size) for unit, size in SCALES if least >= size)
        unit, size = next(fitting, SCALES[-1])
        return cls(unit, size, 2 if most < 100 * size else 1)

    def of_bytes(self, num_bytes: int) -> str:
        """Without the unit."""
        return f"{num_bytes / self.bytes:,.{self.digits}f}"

    def span(self, low: int, high: int) -> str:
        """A range, or the one size that it is."""
        ends = [self.of_bytes(end) for end in (low, high)]
        return ends[0] if low == high else " .. ".join(ends)


def _alike(jobs: Sequence[JobRow]) -> Iterator[str]:
    """Overrides, budget, decision and the terms' status, where they are the same everywhere."""
    if said := [f"{key}={value}" for key, value in fixed(jobs).items()]:
        yield f"all with {' '.join(said)}"
    plans = _plans(jobs)
    if not plans:
        return
    scale = Scale.of(plans)
    budgets = {plan.budget for plan in plans}
    if len(budgets) == 1:
        yield f"budget {scale.of_bytes(budgets.pop())} {scale.unit}"
    decisions = {plan.expert_tables for plan in plans}
    if len(decisions) == 1 and (decision := decisions.pop()) is not None:
        yield f"expert tables: {decision}"
    if any(plan.ranks > 1 for plan in plans):
        yield "sizes are of the fullest rank"
    yield "; ".join(_by_status(plans))


def _by_status(plans: Sequence[MemoryRow]) -> Iterator[str]:
    """`exact: weights, kv`, and so on: each term at the weakest status that it has anywhere.

    `in part`: where another plan has a better one.
    """
    found: dict[str, set[Status]] = {}
    for term in (term for plan in plans for term in plan.terms if term.high):
        found.setdefault(term.id, set()).add(term.status)
    for status in STATUSES:
        for several, words in ((False, ""), (True, " in part")):
            names = [
                name
                for name, own in found.items()
                if max(own, key=STATUSES.index) == status and (len(own) > 1) == several
            ]
            if names:
                yield f"{status}{words}: {', '.join(names)}"


def grid(jobs: Sequence[JobRow], swept: Sequence[Axis]) -> Group | None:
    """Headroom over two swept numbers, the longer one across; None where that is no table."""
    if len(swept) != 2 or not all(axis.numeric for axis in swept):
        return None
    down, across = sorted(swept, key=lambda axis: len(axis.values))
    plans = _plans(jobs)
    if not plans or len(across.values) > GRID_COLUMNS:
        return None
    scale = Scale.of(plans)
    title = f"Headroom in {scale.unit}: {down.name} down, {across.name} across"
    if any(plan.answer == "depends" for plan in plans):
        title += "; ? depends on a range"
    shown = plain_table("", "", *(_number(value) for value in across.values))
    shown.title = None
    found = {(typed(job)[down.key], typed(job)[across.key]): job for job in jobs}
    for row in down.values:
        cells = [_room(found.get((row, column)), scale) for column in across.values]
        shown.add_row(_number(row), *cells)
    return Group(Text(title, style="bold"), shown)


def _number(text: str) -> str:
    return f"{int(text):,}" if text.isdigit() else text


def _room(job: JobRow | None, scale: Scale) -> Cell:
    if job is None:
        return ""
    if (plan := job.memory) is None:
        return Text(job.status, style=VERDICT_STYLES[job.status])
    mark = "?" if plan.answer == "depends" else ""
    return Text(scale.of_bytes(plan.headroom_low) + mark, style=ANSWER_STYLES[plan.answer])
