"""Numbers and tables as people read them. Only for the console: the data keeps exact bytes."""

from __future__ import annotations

import math

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from metpipe.report.diff_section import Severity

__all__ = [
    "count",
    "distance",
    "fraction",
    "indented",
    "milliseconds",
    "plain_table",
    "ratio",
    "significant",
    "size",
    "titled",
]

SCALES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def size(num_bytes: int) -> str:
    """Bytes in the largest unit that leaves at least one of it."""
    for unit, scale in SCALES:
        if abs(num_bytes) >= scale:
            return f"{num_bytes / scale:,.2f} {unit}"
    return f"{num_bytes} B"


def count(number: int | None) -> str:
    """A whole number with separators; a dash for none."""
    return "-" if number is None else f"{number:,}"


def significant(number: float | None) -> str:
    """A number to three significant digits; a dash for none."""
    return "-" if number is None or math.isnan(number) else f"{number:.3g}"


def distance(severity: Severity | None) -> tuple[str, str]:
    """The largest absolute difference, and the one in representable values; NaN has none."""
    if severity is None:
        return "-", "-"
    if severity.nan_elements:
        return "NaN", "NaN"
    return significant(severity.max_abs), count(severity.max_ulp)


def fraction(share: float | None) -> str:
    """A share in percent; 100 only when it is exactly all."""
    if share is None:
        return "-"
    return "100 %" if share == 1 else f"{math.floor(share * 1000) / 10:.1f} %"


def milliseconds(time_ms: float | None) -> str:
    """A time in milliseconds; a dash for none."""
    if time_ms is None or math.isnan(time_ms):
        return "-"
    return f"{time_ms:.2f}" if time_ms >= 1 else f"{time_ms:.4f}"


def ratio(of: float | None, to: float | None) -> str:
    """How many times `to` goes into `of`; a dash where one is missing."""
    return f"{of / to:.2f}x" if of and to else "-"


def indented(text: str, style: str = "") -> Padding:
    """A line under a table; its folds are indented as well."""
    return Padding(Text(text, style=style), (0, 0, 0, 2))


def titled(title: str, table: Table) -> Group:
    """A table without a title of its own, under one that folds at the terminal's width alone."""
    return Group(Text(title, style="bold"), table)


def plain_table(title: str | None, first: str, *others: str) -> Table:
    """A table without lines: a column of names, then columns of numbers.

    A title folds at the table's width; for one that must not, see `titled`.
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="dim",
        box=None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
    )
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table
