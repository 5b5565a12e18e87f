"""One rule judged alone, as a rich table and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from metpipe.report.rule_section import RuleCase, RuleSection
from metpipe.report.units import count, distance, indented, milliseconds, plain_table, ratio

__all__ = ["rule", "rule_lines"]


def rule(section: RuleSection) -> Table:
    """One row a kind of values in the rule's microtest; where it differs, the rows at which."""
    table = plain_table(
        f"Rule {section.id} ({section.numerics}): {', '.join(section.kernels)}",
        *("values", "rows", "unequal bytes", "max abs", "ULP"),
    )
    for name, cases in groupby(section.cases, key=lambda case: case.name):
        table.add_row(*_row_of_cases(name, list(cases)))
    return table


def _row_of_cases(name: str, cases: Sequence[RuleCase]) -> tuple[str | Text, ...]:
    """One kind of values at all row counts: the worst of them, and at which it differs."""
    worst = max(cases, key=lambda case: case.unequal_bytes)
    differing = [case for case in cases if case.unequal_bytes]
    rows = "/".join(str(case.rows) for case in differing or cases)
    style = "bold red" if differing else "green"
    return name, rows, Text(count(worst.unequal_bytes), style=style), *distance(worst.severity)


def rule_lines(section: RuleSection) -> Iterator[Padding]:
    """Launches and time of both sides, then what it comes to."""
    times = f"{milliseconds(section.chain_ms_median)} -> {milliseconds(section.fused_ms_median)} ms"
    speed = ratio(section.chain_ms_median, section.fused_ms_median)
    launches = f"launches {section.chain_launches} -> {section.fused_launches}"
    yield indented(f"chain -> rule: {launches}, {times} ({speed})")
    yield indented(section.sentence, "green" if section.passed else "red")
