"""A grid of loads on the console: how many fit, and the longest prompts that do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table

from metpipe.memory.report import Answer
from metpipe.nouns import number_of
from metpipe.report.grid_section import GridSection, Reach
from metpipe.report.memory_answers import between
from metpipe.report.schema import Report
from metpipe.report.units import count, indented, plain_table, titled

__all__ = ["parts"]

ROWS, COLUMNS = 12, 4
"""Numbers of sequences and outputs that are shown; report.json has all."""
SAID: Mapping[Answer, str] = {
    "fits": "fit",
    "depends": "depend on a range",
    "does not fit": "do not fit",
}


def parts(report: Report) -> Iterator[RenderableType]:
    """What there is to show of a grid."""
    grid = report.grid
    if grid is None:
        return
    seconds = next((stage.seconds for stage in report.stages if stage.name == "grid"), None)
    title = f"Grid on {grid.device}: the longest of {number_of(len(grid.isl), 'prompt')} that fits"
    yield Group(titled(title, reach(grid)), *map(indented, lines(grid, seconds)))


def reach(grid: GridSection) -> Table:
    """A row for each number of sequences, a column for each output; some of many."""
    numbers, outputs = spread(grid.concurrency, ROWS), spread(grid.osl, COLUMNS)
    table = plain_table(None, "at once", *(f"{count(osl)} generated" for osl in outputs))
    rows = {(row.osl, row.concurrency): row for row in grid.reaches()}
    for number in numbers:
        table.add_row(count(number), *(_cell(rows[osl, number]) for osl in outputs))
    return table


def _cell(row: Reach) -> str:
    return "none" if row.possibly is None else between(row.surely, row.possibly)


def lines(grid: GridSection, seconds: float | None) -> Iterator[str]:
    """How many loads come to what."""
    found = grid.counts()
    said = [f"{count(found[answer])} {words}" for answer, words in SAID.items() if found[answer]]
    if found[None]:
        said.append(f"{count(found[None])} beyond what the serve takes")
    total = len(grid.headroom_low)
    took = "" if seconds is None else f", in {seconds:.1f} s"
    yield f"{number_of(total, 'load')}{took}: {', '.join(said)}"


def spread(values: Sequence[int], most: int) -> list[int]:
    """At most so many of the values, evenly, with both ends."""
    if len(values) <= most:
        return list(values)
    step = (len(values) - 1) / (most - 1)
    return [values[round(step * place)] for place in range(most)]
