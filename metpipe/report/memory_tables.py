"""The memory plan and the ledger as rich tables and lines."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from metpipe.nouns import number_of
from metpipe.report import memory_detail
from metpipe.report.memory_answers import between, fixes, queries, ranks, span
from metpipe.report.memory_section import LedgerLine, LedgerSection, MemorySection, Term
from metpipe.report.schema import Report
from metpipe.report.shown import COMPACT, Shown
from metpipe.report.units import count, indented, plain_table, size, titled

__all__ = ["parts"]

STATUS_STYLES = {"exact": "green", "calibrated": "cyan", "uncalibrated": "yellow"}
ANSWER_STYLES = {"fits": "green", "does not fit": "bold red", "depends": "bold yellow"}


def parts(report: Report, shown: Shown = COMPACT) -> Iterator[RenderableType]:
    """What there is to show of the memory plan and the ledger."""
    if (memory := report.memory) is not None:
        if shown.behind:
            yield from memory_detail.parts(memory, per_node=shown.per_node)
        if memory.ranks:
            yield ranks(memory)
        shown_bill = titled(_title(memory), bill(memory, sources=shown.behind))
        yield Group(shown_bill, *_answer(memory, shown))
    if report.ledger is not None:
        yield Group(ledger(report.ledger), _agreement(report.ledger))


def bill(memory: MemorySection, *, sources: bool = False) -> Table:
    """One row a term, then the total, the budget and the room that is left.

    Without sources, a term of nothing is left out, but not one that nobody counted.
    """
    totals = memory.totals
    table = plain_table(None, "term", "size", "of budget")
    table.add_column("status", no_wrap=True)
    if sources:
        table.add_column("source", style="dim", overflow="fold")
    for term in memory.terms:
        if term.high or term.is_uncounted or sources:
            table.add_row(term.id, *_cells(term, totals.budget), *([_source(term)] * sources))
    table.add_row()
    total = span(totals.low, totals.high, size)
    share = _share(totals.low, totals.high, totals.budget)
    table.add_row("total", total, share, style="bold")
    table.add_row("budget", size(totals.budget))
    room = span(totals.headroom_low, totals.headroom_high, size)
    table.add_row("headroom", room, "", Text(totals.answer, style=ANSWER_STYLES[totals.answer]))
    return table


def _cells(term: Term, budget: int) -> tuple[str, str, Text]:
    """Size, share of the budget and status."""
    status = Text(term.status, style=STATUS_STYLES[term.status])
    if term.is_uncounted:
        return "not counted", "-", status
    return span(term.low, term.high, size), _share(term.low, term.high, budget), status


def _share(low: int, high: int, budget: int) -> str:
    """Of the budget, in percent; both ends of a range, where they are shown as two numbers."""
    if budget <= 0:
        return "-"
    ends = dict.fromkeys(f"{100 * end / budget:,.1f}" for end in (low, high))
    return f"{' .. '.join(ends)} %"


def _title(memory: MemorySection) -> str:
    load = memory.workload
    return (
        f"Memory on {memory.header.device}: {load.isl} + {load.osl} tokens, "
        f"{load.concurrency} at once{_ranks(memory)}"
    )


def _ranks(memory: MemorySection) -> str:
    if not memory.ranks:
        return ""
    rank, total = memory.ranks[memory.fullest], memory.ranks[-1].last + 1
    if len(memory.ranks) == 1:
        return f"; each of {total} ranks"
    return f"; rank {rank.first} of {total}, the fullest"


def _source(term: Term) -> str:
    return term.source.splitlines()[0] if term.source else ""


def _answer(memory: MemorySection, shown: Shown) -> Iterator[Padding]:
    yield from map(indented, queries(memory, unasked=shown.behind))
    for line in fixes(memory):
        yield indented(line, "yellow")
    if (pool := memory.pool) is not None:
        yield indented(
            f"the budget leaves {between(pool.blocks_low, pool.blocks_high)} blocks of "
            f"{number_of(pool.block_size, 'token')} ({size(pool.block_bytes)} each); "
            f"this workload needs {count(pool.blocks_needed)}"
        )
    yield from map(indented, _asides(memory))
    for note in memory.header.notes:
        yield indented(f"note: {note}", "cyan")
    if not shown.behind:
        yield indented("report.detail=true says where each number is from", "dim")


def _asides(memory: MemorySection) -> Iterator[str]:
    """What the sum holds or leaves out without a line of its own."""
    totals, tables = memory.totals, memory.header.facts.get("expert tables", "none")
    if tables != "none":
        yield f"expert tables: {tables}"
    if totals.leaked:
        yield f"{size(totals.leaked)} of the copies leak: nothing reads them and nothing frees them"
    if memory.header.accounting == "met":
        yield f"planned activations, {size(totals.planned)}, are not charged: the arena holds them"
    if totals.host:
        yield f"in the host's memory: {size(totals.host)}, outside the total"


def ledger(section: LedgerSection) -> Table:
    """One row a tag: planned, measured, and by how much they differ."""
    table = plain_table(f"Ledger: {section.source}", "tag", "planned", "measured", "difference")
    table.add_column("result")
    for row in section.rows:
        planned = (
            count(row.low) if row.low == row.high else f"{count(row.low)} .. {count(row.high)}"
        )
        table.add_row(row.tag, planned, count(row.measured), f"{row.difference:+,}", _agrees(row))
    return table


def _agrees(row: LedgerLine) -> Text:
    if row.status is None:
        return Text("NOT PLANNED", style="bold red")
    if not row.agrees:
        return Text("DIFFERS", style="bold red")
    return Text("exact" if row.low == row.high else "in range", style="green")


def _agreement(section: LedgerSection) -> Padding:
    off = [row.tag for row in section.rows if not row.agrees]
    if off:
        return indented(f"the plan is off by tag: {', '.join(off)}", "red")
    return indented("every tag is as planned", "green")
