"""Prediction against measurement, tag by tag."""

from __future__ import annotations

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import check_ledger, evaluate


@pytest.fixture(scope="module")
def report(tiny):
    return evaluate(tiny)


@pytest.fixture
def measured(report):
    return {term.id: term.low for term in report.terms if term.id != "driver" and term.low}


def test_an_honest_boot_agrees(report, measured):
    rows = check_ledger(report, measured)
    assert all(row.agrees for row in rows)
    tags = ["weights", "kv", "states", "arena", "workspace", "tables", "step"]
    assert [row.tag for row in rows] == tags


def test_one_byte_is_seen(report, measured):
    rows = check_ledger(report, measured | {"kv": measured["kv"] + 1})
    assert [(row.tag, row.difference) for row in rows if not row.agrees] == [("kv", 1)]


def test_a_term_that_was_not_allocated_was_measured_as_nothing(report, measured):
    del measured["weights"]
    row = check_ledger(report, measured)[0]
    assert (row.measured, row.agrees, row.difference) == (0, False, -row.low)


def test_an_unplanned_tag_never_agrees(report, measured):
    row = check_ledger(report, measured | {"leak": 4})[-1]
    assert (row.tag, row.status, row.agrees, row.difference) == ("leak", None, False, 4)


def test_an_empty_ledger_compares_nothing(report):
    with pytest.raises(ConfigError, match="nothing to compare"):
        check_ledger(report, {})
