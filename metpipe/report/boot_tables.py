"""A boot of met's engine as rich tables: predicted, measured, the error and what is accepted."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metpipe.report.boot_section import BootLine, BootSection
from metpipe.report.memory_answers import span
from metpipe.report.schema import Report
from metpipe.report.units import count, indented, plain_table, titled

__all__ = ["parts"]

MIB = 1 << 20


def parts(report: Report) -> Iterator[RenderableType]:
    """What there is to show of a boot."""
    if (boot := report.boot) is not None:
        unexplained = f"{boot.unattributed / MIB:,.1f} MiB of the ledger belong to none of them"
        title = f"Boot of {boot.checkpoint} (met, version {boot.version}): its ledger in MiB"
        shown = titled(title, terms(boot))
        yield Group(shown, indented(_pools(boot), "dim"), indented(unexplained, "dim"))
        if boot.note:
            yield indented(boot.note, "yellow")
        if boot.reserve:
            yield reserve(boot)


def terms(boot: BootSection) -> Table:
    """One row a line that the boot's ledger itemizes, and the plan's terms that it holds."""
    table = plain_table(None, "ledger", "predicted", "measured", "error", "tolerance")
    table.add_column("result")
    table.add_column("terms of a plan")
    for line in boot.terms:
        table.add_row(
            line.term,
            span(line.predicted, line.predicted_high, lambda end: f"{end / MIB:,.2f}"),
            f"{line.measured_mib:,.1f}",
            _error(line),
            f"{line.tolerance_percent:g} %",
            _result(line.agrees),
            " + ".join(line.of),
        )
    return table


def _error(line: BootLine) -> str:
    if line.error_percent is None:
        return "of none"
    if not line.error_percent and line.predicted < line.predicted_high:
        return "inside"
    return f"{line.error_percent:+.4f} %"


def _pools(boot: BootSection) -> str:
    """Why the same term may be another size than in the plan above."""
    draft = f", and {boot.draft_kv_blocks:,} of the draft head" if boot.draft_kv_blocks else ""
    return (
        f"of one token: kv is the {boot.kv_blocks:,} blocks that the boot itself took{draft}; the "
        "plan's is what its load needs"
    )


def reserve(boot: BootSection) -> Table:
    """One row a line of the boot's preflight, and what of a plan it holds."""
    table = plain_table("Its preflight in whole MiB", "reserve", "predicted", "printed")
    table.add_column("result")
    table.add_column("terms of a plan")
    for line in boot.reserve:
        predicted = span(line.predicted_mib, line.predicted_high_mib, count)
        printed = count(line.printed_mib)
        table.add_row(line.name, predicted, printed, _result(line.agrees), line.of)
    return table


def _result(agrees: bool) -> Text:
    return Text("agrees", style="green") if agrees else Text("MISSES", style="bold red")
