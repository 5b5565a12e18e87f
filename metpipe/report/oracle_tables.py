"""The oracle as a rich table: one row a prompt under the outside implementation."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from metpipe.report.oracle_section import OracleSection
from metpipe.report.units import count, fraction, plain_table, significant

__all__ = ["oracle"]


def oracle(section: OracleSection) -> Table:
    """One row a prompt under the outside implementation."""
    title = f"Oracle: {section.name} {section.version}, fp32, reading with {section.reader}"
    differences = ("max |difference|", "tolerated", "rms", "tolerated")
    table = plain_table(title, "prompt", "positions", "top-1", *differences)
    table.add_column("result")
    for index, row in enumerate(section.prompts):
        table.add_row(
            f"{index} ({row.tokens})",
            count(row.positions),
            fraction(row.top1_agreement),
            significant(row.max_abs_difference),
            significant(row.tolerance),
            significant(row.rms_difference),
            significant(row.rms_tolerance),
            Text("agrees", style="green") if row.passed else Text("DISAGREES", style="bold red"),
        )
    return table
