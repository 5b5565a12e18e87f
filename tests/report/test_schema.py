"""report.json: its names, that it reads back equal, and that nothing undeclared gets in."""

from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from metpipe.report.diff_section import (
    Comparison,
    DiffSection,
    Prompt,
    Timing,
)
from metpipe.report.memory_section import LedgerSection, ledger_section, memory_section
from metpipe.report.oracle_section import OracleRow
from metpipe.report.schema import Report
from tests.report import examples


@pytest.fixture
def written(tmp_path) -> dict:
    path = examples.report().write(tmp_path)
    return json.loads(path.read_text())


def test_the_verdict_and_its_reasons_come_first(written):
    assert list(written)[:3] == ["schema", "verdict", "reasons"]
    assert written["schema"] == 1


def test_it_says_where_it_ran_and_for_what_memory_was_planned(written):
    assert written["executed_on"]["device"] == "cpu"
    assert written["planned_for"]["device"] == "b200"
    assert written["planned_for"]["plans_with"] == "cpu"


def test_the_diff_keeps_the_field_names_that_readers_know(written):
    diff = written["diff"]
    assert {"graphs", "steps", "variants", "prompts", "detection_control"} <= set(diff)
    assert {"name", "plan_digest", "launches_per_step"} <= set(diff["variants"][0])
    prompt = diff["prompts"][0]
    assert {"tokens", "comparisons", "timings"} <= set(prompt)
    assert set(prompt["timings"][0]) == {
        "variant",
        "enqueue_ms_median",
        "step_ms_median",
        "cached",
    }
    known = {
        "variant",
        "prefill_equal",
        "steps",
        "mismatched_steps",
        "first_mismatch",
        "max_mismatched_bytes",
        "prefill_first_diff",
    }
    assert known <= set(prompt["comparisons"][0])
    assert known <= set(diff["detection_control"])


def test_sizes_are_exact_integers(written):
    weights = next(term for term in written["memory"]["terms"] if term["id"] == "weights")
    assert weights["low"] == 269030400


def test_a_report_reads_back_equal(tmp_path):
    for report in (examples.report(), examples.failing_report(), examples.rule_report()):
        report.write(tmp_path)
        assert Report.read(tmp_path) == report


def test_nan_is_null(tmp_path):
    timing = Timing(variant="legacy", enqueue_ms_median=math.nan, step_ms_median=math.nan)
    prompt = Prompt(tokens=3, comparisons=(), timings=(timing,))
    path = examples.report(diff=examples.diff(prompts=(prompt,))).write(tmp_path)
    written = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert written["diff"]["prompts"][0]["timings"][0]["step_ms_median"] is None


def test_writing_leaves_one_whole_file(tmp_path):
    examples.report().write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_an_undeclared_key_is_refused():
    with pytest.raises(ValidationError, match="Extra inputs"):
        Timing.model_validate(
            {"variant": "legacy", "enqueue_ms_median": 1, "step_ms_median": 1, "total": 2}
        )


@pytest.mark.parametrize(
    ("changes", "equal"),
    [
        ({}, True),
        ({"prefill_equal": False}, False),
        ({"mismatched_steps": 1, "first_mismatch": 3}, False),
        ({"state_diff": ("attn.k",)}, False),
    ],
)
def test_a_comparison_is_equal_only_in_all_of_its_parts(changes, equal):
    assert examples.comparison("circuit", **changes).equal is equal


@pytest.mark.parametrize(
    ("changes", "passed"),
    [
        ({}, True),
        ({"max_abs_difference": 0.6}, False),
        ({"max_abs_difference": None}, False),
        ({"rms_difference": 0.11}, False),
        ({"rms_difference": None}, False),
        ({"clear_flips": 1}, False),
    ],
)
def test_an_oracle_row_passes_only_within_both_tolerances(changes, passed):
    row = {
        "tokens": 3,
        "positions": 3,
        "top1_agreement": 1.0,
        "max_abs_difference": 0.5,
        "tolerance": 0.5,
        "noise": 0.125,
        "rms_difference": 0.1,
        "rms_tolerance": 0.1,
        "clear": 2,
        "clear_flips": 0,
    }
    assert OracleRow(**row | changes).passed is passed


def test_a_memory_record_becomes_a_section_without_its_ledger():
    section = memory_section(examples.memory_record(), examples.WORKLOAD)
    assert section.totals.answer == "fits"
    assert section.workload.isl == 1024
    assert "ledger" not in section.model_dump()


def test_a_ledger_agrees_only_if_it_has_rows_and_each_does():
    good, bad = examples.ledger_row("kv", 8, 8), examples.ledger_row("weights", 8, 9)
    assert ledger_section("this process", [good]).agrees
    assert not ledger_section("this process", [good, bad]).agrees
    assert not LedgerSection(source="this process", rows=()).agrees


def test_the_parts_of_the_diff_can_be_read_back_alone():
    diff = examples.diff()
    assert DiffSection.model_validate(diff.model_dump(mode="json")) == diff
    comparison = examples.DIFFERING
    assert Comparison.model_validate_json(comparison.model_dump_json()) == comparison
