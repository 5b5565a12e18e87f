"""What a memory plan answers beside its bill: inverse queries, changes that would help, ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.table import Table

from metpipe.report.memory_section import MemorySection, Query, Value
from metpipe.report.units import count, plain_table, size

__all__ = ["between", "counted", "fixes", "queries", "ranks", "span"]

WHAT = {
    "max_concurrency": "sequence{s} at once",
    "max_isl": "prompt token{s}",
    "max_osl": "generated token{s}",
    "max_slots": "state slot{s}",
    "max_snapshot_slots": "snapshot{s} of recurrent state",
    "max_verify": "row{s} of a verify",
    "min_utilization": "the smallest share of the device's memory that would do",
    "min_device": "the smallest device that would do",
}
"""Query -> what is counted, of which there may be one or more."""

FLAGS = "the most that the serve flags allow"
LIMITS = dict.fromkeys(("max_slots", "max_snapshot_slots", "max_verify"), "the most that is asked")
"""What an answer at the end of its range means."""


def counted(memory: MemorySection) -> str:
    """Whose engine the bill is of, and whether anybody calibrated it on the device.

    In part only where its driver is calibrated, and other terms are not.
    """
    said, totals = f"{memory.header.accounting}'s engine counted", memory.totals
    unproven = {term.id for term in memory.terms if term.is_open}
    if not unproven:
        return said
    partly = "" if "driver" in unproven else "partly "
    spread = totals.high - totals.low
    wide = f", a range of {size(spread)}" if spread else ""
    return f"{said}; {partly}uncalibrated on {memory.header.device}{wide}"


def queries(memory: MemorySection, *, unasked: bool = True) -> Iterator[str]:
    """A line each; `unasked`: also for what was not asked, with the reason."""
    for name, query in memory.inverse.items():
        if query.why and not unasked:
            continue
        yield _query(name, query, memory)
        for why, values in query.left_out.items():
            yield f"not asked: {', '.join(values)} ({why})"
        if query.exceptions:
            yield _exceptions(name, query)


def _exceptions(name: str, query: Query) -> str:
    listed = ", ".join(map(_shown, query.exceptions))
    if name == "min_device":
        return f"but not on every larger one: on {listed} it would not surely fit"
    return (
        f"but not in order: {listed} {'break' if len(query.exceptions) > 1 else 'breaks'} what "
        f"{name} presumes, that a value fits wherever one that asks for more does"
    )


def _query(name: str, query: Query, memory: MemorySection) -> str:
    what = WHAT[name].format(s="" if query.possibly == 1 else "s")
    at = f" with {query.beside}" if query.beside else _at(name, memory)
    if query.why:
        return f"{what}: not asked, {query.why}"
    least = query.low if query.sense == "most" else query.high
    if query.possibly is None and least == 0:
        return f"{what}: it would not fit{at}, even without any"
    if query.possibly is None:
        return f"{what}: not even {_shown(least)} would fit{at}"
    values = between(query.surely, query.possibly)
    if query.surely is None and query.sense == "most":
        return f"surely no {what}, possibly up to {_shown(query.possibly)} would fit{at}"
    if query.sense == "least":
        return f"{what}: {values}"
    limit = f", {LIMITS.get(name, FLAGS)}" if query.surely == query.high else ""
    return f"up to {values} {what} would fit{at}{limit}"


def _at(name: str, memory: MemorySection) -> str:
    """The rest of the load, where it is what the answer hangs on."""
    load = memory.workload
    return {
        "max_concurrency": f" ({load.isl} + {load.osl} tokens each)",
        "max_isl": f" ({load.osl} generated, {load.concurrency} at once)",
        "max_osl": f" (prompts of {load.isl}, {load.concurrency} at once)",
    }.get(name, "")


def _shown(value: Value | None) -> str:
    return count(value) if isinstance(value, int) else str(value)


def between(surely: Value | None, possibly: Value | None) -> str:
    """One value, or both ends of what a range leaves open."""
    if surely == possibly:
        return _shown(surely)
    if surely is None:
        return f"surely none, possibly {_shown(possibly)}"
    return f"{_shown(surely)} (surely) to {_shown(possibly)} (possibly)"


def fixes(memory: MemorySection) -> Iterator[str]:
    """The single changes that would help, for a plan that does not surely fit."""
    if memory.totals.answer == "fits":
        return
    if not memory.fixes:
        yield "no single change of what is asked here would make it fit"
    for fix in memory.fixes:
        verb = "would make" if fix.answer == "fits" else "might make"
        yield (
            f"{fix.override} {verb} it fit, leaving "
            f"{span(fix.headroom_low, fix.headroom_high, size)}"
        )


def span(low: int, high: int, shown: Callable[[int], str]) -> str:
    """A size, or a range of them."""
    return shown(low) if low == high else f"{shown(low)} .. {shown(high)}"


def ranks(memory: MemorySection) -> Table:
    """A column a stage: what each of its ranks holds."""
    table = plain_table("Each rank", "term")
    for index, rank in enumerate(memory.ranks):
        mark = " (the fullest)" if index == memory.fullest and len(memory.ranks) > 1 else ""
        table.add_column(
            f"{_numbers('rank', rank.first, rank.last)}{mark}\n"
            f"{_numbers('layer', rank.first_layer, rank.last_layer)}",
            justify="right",
        )
    for term in memory.ranks[0].terms:
        table.add_row(term, *(span(*rank.terms[term], size) for rank in memory.ranks))
    totals = (span(rank.total_low, rank.total_high, size) for rank in memory.ranks)
    table.add_row("total", *totals, style="bold")
    rooms = (span(rank.headroom_low, rank.headroom_high, size) for rank in memory.ranks)
    table.add_row("headroom", *rooms)
    return table


def _numbers(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"
