"""A report on the console: where and what, the tables, one line a control, the verdict last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from metpipe.nouns import number_of
from metpipe.report import boot_tables, diff_tables, grid_tables, memory_tables
from metpipe.report.diff_section import DiffSection, Overhead
from metpipe.report.memory_answers import counted
from metpipe.report.schema import Executed, Planned, Report
from metpipe.report.shown import COMPACT, Shown
from metpipe.report.shown_case import shown_cases
from metpipe.report.units import ratio, size

__all__ = ["VERDICT_STYLES", "covered", "show"]

VERDICT_STYLES = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "INCONCLUSIVE": "bold yellow",
    "USAGE": "bold red",
    "DIED": "bold magenta",
    "INTERRUPTED": "bold yellow",
}


def show(
    report: Report,
    console: Console,
    path: Path | None = None,
    shown: Shown = COMPACT,
    picture: str = "",
) -> None:
    """Print the report; `path` is where its data was written, whatever of it is shown.

    `picture` says where one was drawn, or why none was.
    """
    console.print()
    console.print(_header(report, shown))
    for part in (
        *diff_tables.parts(report),
        *memory_tables.parts(report, shown),
        *grid_tables.parts(report),
        *boot_tables.parts(report),
    ):
        console.print()
        console.print(part)
    console.print()
    console.print(Rule(style="dim"))
    console.print(_pointers(report, path, picture))
    console.print(verdict(report))


def _pointers(report: Report, path: Path | None, picture: str) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    if said := covered(report):
        grid.add_row("covered", said)
    if report.diff is not None and report.diff.overhead is not None:
        grid.add_row("overhead", _overhead(report.diff.overhead))
    if path is not None:
        grid.add_row("report", str(path))
    if picture:
        grid.add_row("picture", picture)
    return grid


def verdict(report: Report) -> Table:
    """The verdict, each of its reasons on a line of its own, and last whose memory was counted."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style=VERDICT_STYLES[report.verdict], no_wrap=True)
    grid.add_column(overflow="fold")
    whose = () if report.memory is None else (counted(report.memory),)
    first, *others = (*report.reasons, *whose) or ("",)
    grid.add_row(report.verdict, Text(first))
    for reason in others:
        grid.add_row("", Text(reason))
    return grid


def covered(report: Report) -> str:
    """What the verdict covers, so that a PASS can't be read as more than it is."""
    parts = []
    if report.diff is not None:
        parts.append(_judged(report.diff))
    if report.oracle is not None:
        parts.append(f"{report.oracle.name} {'agrees' if report.oracle.passed else 'disagrees'}")
    if report.memory is not None:
        parts.append(f"memory on {report.memory.header.device}: {report.memory.totals.answer}")
    if report.ledger is not None:
        parts.append(f"ledger {'agrees' if report.ledger.agrees else 'disagrees'}")
    if report.boot is not None:
        parts.append(f"boot {'disagrees' if report.boot.misses else 'agrees'}")
    if report.rule is not None:
        parts.append(f"rule {report.rule.id} over {number_of(len(report.rule.cases), 'case')}")
    return "; ".join(parts)


def _judged(diff: DiffSection) -> str:
    """Forwards and steps; of more than plain decoding, the cases of each mode."""
    cases = shown_cases(diff)
    found = [c for case in cases for c in case.comparisons if c.expect == "equal"]
    judged = [comparison for comparison in found if comparison.variant not in diff.repeat_variants]
    promised = [cell for cell in diff.invariance if cell.promised]
    named = [*(c.variant for c in judged), *(cell.variant for cell in promised)]
    names = list(dict.fromkeys(named))
    steps = sum(comparison.steps for comparison in judged)
    of_modes = Counter(case.mode for case in cases)
    over = [f"{steps:,} steps"] if judged or not promised else []
    if over and set(of_modes) != {"single"}:
        counts = ", ".join(f"{number} {mode}" for mode, number in of_modes.items())
        of = f"of {next(iter(of_modes))}" if len(of_modes) == 1 else f"({counts})"
        over[0] += f" in {number_of(len(cases), 'case')} {of}"
    if promised:
        over.append(f"{number_of(len(promised), 'promised pair')} of ways")
    return f"{_and(names) or 'no forward'} judged over {' and '.join(over)}, byte for byte"


def _and(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _overhead(cost: Overhead) -> str:
    """What the diff cost beside its forwards."""
    times = f"({cost.forward_seconds:.1f} s of {cost.total_seconds:.1f} s)"
    return f"diff {ratio(cost.total_seconds, cost.forward_seconds)} the sum of its forwards {times}"


def _header(report: Report, shown: Shown) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    origin = report.provenance
    grid.add_row("run", f"{origin.id}  {report.model}")
    if shown.behind:
        grid.add_row("set", " ".join(origin.overrides) or "nothing: all defaults")
    if (checkpoint := origin.checkpoint) is not None:
        digest = "" if checkpoint.digest is None else f", sha256 {checkpoint.digest[:12]}"
        grid.add_row("checkpoint", f"{checkpoint.source} ({checkpoint.reader}{digest})")
    grid.add_row("executed on", _executed(report.executed_on))
    grid.add_row("planned for", _planned(report.planned_for))
    for note in report.notes:
        grid.add_row(Text("note", style="cyan"), note)
    if origin.rerun is not None:
        grid.add_row("rerun", origin.rerun)
    if origin.resumed is not None:
        cached = sum(stage.cached for stage in report.stages)
        grid.add_row("resumed", f"{cached} of {len(report.stages)} stages from {origin.resumed}")
    return grid


def _executed(machine: Executed | None) -> str:
    if machine is None:
        return "nothing was executed"
    facts = [machine.name]
    if machine.cores is not None:
        facts.append(f"{machine.cores} cores")
    if machine.memory_bytes is not None:
        facts.append(size(machine.memory_bytes))
    unproven = ", unproven on this GPU" if machine.unproven else ""
    return f"{machine.device} ({', '.join(facts)}), kernel set {machine.kernel_set}{unproven}"


def _planned(device: Planned | None) -> str:
    if device is None:
        return "no memory was planned"
    stand_in = "" if device.plans_with is None else f", planned with the set {device.plans_with}"
    return f"{device.device} ({device.name}, {size(device.memory_bytes)}){stand_in}"
