"""The same row on two ways: what the kernel set promises of an axis, what each forward gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from metpipe.report.diff_section import InvarianceCell
from metpipe.report.units import count, distance, indented, plain_table

__all__ = ["invariance"]

MAX_LINES = 12
"""Cells that differ and get a line; report.json has all."""


def invariance(cells: Sequence[InvarianceCell], steps: int | None) -> Iterator[RenderableType]:
    """The table, and a line for each cell that differs; nothing where none was compared.

    `steps`: the decode steps of a leg.
    """
    if not cells:
        return
    names = list(dict.fromkeys(cell.variant for cell in cells))
    of = "" if steps is None else f", over {steps} decode steps"
    table = plain_table(f"Invariance: the same row computed two ways{of}", "axis")
    table.add_column("promised", no_wrap=True)
    for header in ("pairs", "rows", *names):
        table.add_column(header, justify="right")
    for axis in dict.fromkeys(cell.axis for cell in cells):
        own = [cell for cell in cells if cell.axis == axis]
        first = [cell for cell in own if cell.variant == own[0].variant]
        table.add_row(
            axis,
            _promised(own),
            count(len(first)),
            count(sum(cell.points for cell in first)),
            *(_found([cell for cell in own if cell.variant == name]) for name in names),
        )
    yield Group(table, *_lines([cell for cell in cells if not cell.equal]))


def _promised(cells: Sequence[InvarianceCell]) -> str:
    """Of every forward, or of some: a folder of kernels may take a promise back."""
    held = {cell.promised for cell in cells}
    return "by some" if len(held) > 1 else "yes" if held.pop() else "no"


def _found(cells: Sequence[InvarianceCell]) -> Text:
    differing = [cell for cell in cells if not cell.equal]
    if not cells:
        return Text("-")
    if not differing:
        return Text("equal", style="green")
    broken = any(cell.promised for cell in differing)
    said = f"in {len(differing)} of {len(cells)}"
    if broken:
        return Text(f"DIFFERS {said}", style="bold red")
    return Text(f"differs {said}", style="yellow")


def _lines(differing: Sequence[InvarianceCell]) -> Iterator[Padding]:
    for cell in differing[:MAX_LINES]:
        yield indented(f"{cell.variant}, {cell.axis}, {cell.name}: {_place(cell)}")
    if len(differing) > MAX_LINES:
        yield indented(f"and {len(differing) - MAX_LINES} more", "dim")


def _place(cell: InvarianceCell) -> str:
    """Where it starts and how far apart it is, or which state."""
    if not cell.differing:
        return f"state differs ({cell.state_diff[0]})"
    where = "before step 0" if cell.step == -1 else f"from step {cell.step}"
    max_abs, ulp = distance(cell.severity)
    rows = f"{cell.differing} of {cell.points} rows"
    return f"{where}, row {cell.row}, byte {cell.byte}; {rows}, max abs {max_abs}, {ulp} ULP"
