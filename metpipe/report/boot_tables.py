"""A boot of met's engine as rich tables: predicted, measured, the error and what is accepted."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metpipe.report.boot_section import BootSection
from metpipe.report.schema import Report
from metpipe.report.units import indented, plain_table, titled

__all__ = ["parts"]

MIB = 1 << 20


def parts(report: Report) -> Iterator[RenderableType]:
    """What there is to show of a boot."""
    if (boot := report.boot) is not None:
        unexplained = f"{boot.unattributed / MIB:,.1f} MiB of the ledger belong to none of them"
        title = f"Boot of {boot.checkpoint} (met, version {boot.version}): MiB"
        yield Group(titled(title, terms(boot)), indented(unexplained, "dim"))
        if boot.reserve:
            yield reserve(boot)


def terms(boot: BootSection) -> Table:
    """One row a term that the boot's ledger itemizes."""
    table = plain_table(None, "term", "predicted", "measured", "error", "tolerance")
    table.add_column("result")
    for line in boot.terms:
        table.add_row(
            line.term,
            f"{line.predicted / MIB:,.2f}",
            f"{line.measured_mib:,.1f}",
            f"{line.error_percent:+.4f} %",
            f"{line.tolerance_percent:g} %",
            _result(line.agrees),
        )
    return table


def reserve(boot: BootSection) -> Table:
    """One row a line of the boot's preflight."""
    table = plain_table("Its preflight: whole MiB", "line", "predicted", "printed")
    table.add_column("result")
    for line in boot.reserve:
        table.add_row(
            line.name, f"{line.predicted_mib:,}", f"{line.printed_mib:,}", _result(line.agrees)
        )
    return table


def _result(agrees: bool) -> Text:
    return Text("agrees", style="green") if agrees else Text("MISSES", style="bold red")
