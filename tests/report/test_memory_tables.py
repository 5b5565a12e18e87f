"""A plan's bill on the console: compact, and with all that lies behind it."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from metpipe.report.console import show
from metpipe.report.memory_section import memory_section
from metpipe.report.shown import COMPACT, Shown
from tests.report import examples


def lines(shown: Shown = COMPACT, **changes: Any) -> list[str]:
    record = examples.memory_record() | changes
    report = examples.report(memory=memory_section(record, examples.WORKLOAD))
    out = io.StringIO()
    show(report, Console(file=out, width=120), None, shown)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def row(name: str, found: list[str]) -> list[str]:
    """The one line of the bill that starts so; other tables, and the ledger, stand around it."""
    first = next(at for at, line in enumerate(found) if line.startswith("Memory on "))
    last = next(at for at, line in enumerate(found) if line.startswith("headroom "))
    (line,) = [line for line in found[first:last] if line.startswith(f"{name} ")]
    return line.split()


def test_the_compact_bill_is_a_line_a_term_with_its_share_and_its_status():
    found = lines()
    assert row("term", found) == ["term", "size", "of", "budget", "status"]
    assert row("weights", found) == ["weights", "256.57", "MiB", "0.2", "%", "exact"]
    driver = "driver 475.00 MiB .. 4.20 GiB 0.3 .. 2.8 % uncalibrated"
    assert " ".join(row("driver", found)) == driver
    assert not any("the checkpoint's shapes" in line for line in found)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (0, 4000, "0.0 .. 2.0 %"),
        (2000, 4000, "1.0 .. 2.0 %"),
        (4000, 4000, "2.0 %"),
        (4000, 4001, "2.0 %"),
    ],
)
def test_the_share_of_a_range_has_both_ends_unless_they_look_alike(low, high, said):
    record: Any = examples.memory_record()
    totals = record["totals"] | {"low": low, "high": high, "budget": 200_000}
    terms = [{**record["terms"][0], "id": "one", "low": low, "high": high}]
    found = lines(terms=terms, totals=totals)
    for name in ("one", "total"):
        shown = " ".join(row(name, found))
        assert re.search(rf"(?:B|iB) {re.escape(said)}", shown), shown


def test_a_term_that_nobody_counted_stays_in_the_compact_bill():
    record: Any = examples.memory_record()
    why = {"source": "not counted: the files are away", "status": "uncalibrated"}
    terms = [*record["terms"], {"id": "outside", "low": 0, "high": 0, **why}]
    assert row("outside", lines(terms=terms)) == ["outside", "not", "counted", "-", "uncalibrated"]
    known = [*record["terms"], {**terms[-1], "source": "a formula"}]
    found = lines(terms=known)
    assert not [line for line in found if line.startswith("outside ")]


def test_a_term_of_nothing_is_left_out_of_the_compact_bill_alone():
    assert not [line for line in lines() if line.startswith("state ")]
    assert row("state", lines(Shown(detail=True)))[1:3] == ["0", "B"]


@pytest.mark.parametrize("shown", [Shown(detail=True), Shown(per_node=True)], ids=str)
def test_what_lies_behind_is_shown_on_demand(shown):
    found = "\n".join(lines(shown))
    assert "the checkpoint's shapes" in found
    for title in ("Nodes: MiB", "States and caches", "Planned activations: MiB"):
        assert title in found
        assert title not in "\n".join(lines())


def test_what_was_set_on_the_line_or_by_a_recipe_stands_above_the_detail():
    assert [line for line in lines(Shown(detail=True)) if line.startswith("set ")]
    assert not [line for line in lines() if line.startswith("set ")]


def test_the_compact_bill_says_how_to_see_more():
    assert any("report.detail=true" in line for line in lines())
    assert not any("report.detail=true" in line for line in lines(Shown(detail=True)))


def test_a_decision_on_the_experts_tables_is_said_in_short_as_well():
    header: Any = examples.memory_record()["header"]
    said = "skip: 62451.0 MiB, headroom -1.0 MiB with them"
    found = lines(header=header | {"facts": {"engine": "met", "expert tables": said}})
    assert f"  expert tables: {said}" in found
    assert not any(line.startswith("engine ") for line in found)
    none = lines(header=header | {"facts": {"expert tables": "none"}})
    assert not any("expert tables" in line for line in none)


def test_what_was_not_asked_is_told_with_the_rest_only():
    record: Any = examples.memory_record()
    why = "this engine keeps no prefix cache"
    unasked = dict.fromkeys(("low", "high", "surely", "possibly"))
    query = {"sense": "most", **unasked, "exceptions": [], "why": why}
    inverse = record["inverse"] | {"max_snapshot_slots": query}
    assert not any(why in line for line in lines(inverse=inverse))
    assert any(why in line for line in lines(Shown(detail=True), inverse=inverse))
