"""A table a mode: one row a case, what ran, and what each forward's comparison found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metpipe.report.diff_section import Comparison, DiffSection, Speculation
from metpipe.report.shown_case import ShownCase, shown_cases
from metpipe.report.units import count, fraction, milliseconds, plain_table, significant

__all__ = ["case_tables"]

REFERENCE = "legacy"
TITLES = {
    "single": "one sequence, a row a step",
    "batch": "several sequences, a row each",
    "verify": "one sequence, K rows a step",
    "verify_batch": "several sequences, K rows each",
    "prefill": "whole, in chunks, behind a restored prefix",
    "swap": "saved half way, restored in another slot",
}


def case_tables(diff: DiffSection) -> Iterator[RenderableType]:
    """One for each mode; plain decoding alone is told by the table of forwards."""
    cases = shown_cases(diff)
    if all(case.mode == "single" for case in cases):
        return
    names = _judged_first(diff)
    for mode, of_mode in groupby(cases, key=lambda case: case.mode):
        yield _table(mode, list(of_mode), names)
    if diff.speculation:
        yield _speculation(diff.speculation)


def _judged_first(diff: DiffSection) -> list[str]:
    """The variants in the order in which they ran; repeats have the table of forwards."""
    repeats = diff.repeat_variants
    names = [c.variant for case in shown_cases(diff) for c in case.comparisons]
    return [name for name in dict.fromkeys(names) if name not in repeats]


def _table(mode: str, cases: Sequence[ShownCase], names: Sequence[str]) -> Group:
    """The title stands above, not in the table: it may be the wider one."""
    title = Text(f"{mode}: {TITLES[mode]}{_shared(cases)} (ms of a step)", style="bold")
    table = plain_table("", "case")
    table.columns[0].no_wrap = False
    facts = _facts(cases)
    for header in facts:
        table.add_column(header, justify="right", overflow="fold")
    for name in (REFERENCE, *names):
        table.add_column(name, justify="right", no_wrap=True)
    for index, case in enumerate(cases):
        table.add_row(
            case.name,
            *(column[index] for column in facts.values()),
            _time(case, REFERENCE),
            *(_cell(case, name) for name in names),
        )
    return Group(title, table)


def _shared(cases: Sequence[ShownCase]) -> str:
    """The prompts' lengths, where all cases have the same."""
    ranges = {case.token_range for case in cases}
    if len(ranges) != 1 or len(cases) == 1:
        return ""
    (shared,) = ranges
    return f", {shared} {'token' if shared == '1' else 'tokens'}"


def _facts(cases: Sequence[ShownCase]) -> dict[str, list[str]]:
    """Header -> a cell a case; columns that would say nothing are left out."""
    columns = {
        "tokens": [case.token_range for case in cases],
        "accepts": [case.accepts for case in cases],
        "slots": [case.slot_runs for case in cases],
    }
    if all(len(case.tokens) == 1 for case in cases):
        del columns["slots"]
    if cases[0].mode == "prefill" or _shared(cases):
        del columns["tokens"]  # the names say it, or the title
    return {name: cells for name, cells in columns.items() if any(cells)}


def _cell(case: ShownCase, name: str) -> Text:
    comparison = case.comparison(name)
    if comparison is None:
        return Text("-")
    if comparison.equal:
        return Text.assemble(("equal", "green"), f" {_time(case, name):>6}")
    return _where(comparison)


def _where(comparison: Comparison) -> Text:
    """A few words for a difference; the table of differences says more."""
    if comparison.first_mismatch is not None and comparison.prefill_equal:
        where = f"step {comparison.first_mismatch}"
    else:
        where = "state" if comparison.prefill_equal else "prefill"
    if comparison.expect == "report":
        return Text(f"differs, {where}", style="yellow")
    return Text(f"DIFFERS, {where}", style="bold red")


def _time(case: ShownCase, name: str) -> str:
    """The median of its steps; a dash where it is from another run."""
    timing = case.timing(name)
    fresh = timing is not None and not timing.cached
    return milliseconds(timing.step_ms_median if timing and fresh else None)


def _speculation(rows: Sequence[Speculation]) -> Table:
    """What the draft head's drafts bring beside plain decoding of the same prompt."""
    table = plain_table("Drafts of the model's own head", "forward", "K", "accepted")
    for name in ("share", "tokens/step", "ms/token", "plain", "speed"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.variant,
            str(row.k),
            f"{count(row.accepted)} of {count(row.drafted)}",
            fraction(row.rate),
            significant(row.tokens_per_step),
            milliseconds(row.ms_per_token),
            milliseconds(row.plain_ms_per_token),
            "-" if row.speedup is None else f"{row.speedup:.2f}x",
        )
    return table
