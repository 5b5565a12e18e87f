"""sweep.json and its table: a row per job, whatever became of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from metpipe.errors import Exit
from metpipe.report import outcome, sweep
from metpipe.report.memory_section import memory_section
from metpipe.report.sweep_record import SweepRecord
from tests.report import case_examples, examples


def job(root: Path, number: int, *overrides: str) -> Path:
    folder = root / str(number)
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").touch()
    if overrides:
        (folder / "run.json").write_text(json.dumps({"overrides": overrides}))
    return folder


def three_jobs(root: Path) -> None:
    """One that passed, one with a wrong value, one that was killed."""
    passed = job(root, 0)
    outcome.write(passed, Exit.PASS, None, ["pipeline=full", "slots=1"])
    examples.report().write(passed)
    outcome.write(job(root, 1), Exit.USAGE, "slots: must be at least 1\n  x", ["slots=0"])
    job(root, 10, "pipeline=full", "slots=16")


def test_each_job_is_a_row_in_order_and_the_statuses_come_back(tmp_path):
    three_jobs(tmp_path)
    out = io.StringIO()
    statuses = sweep.write(tmp_path, Console(file=out, width=140))
    assert statuses == [Exit.PASS, Exit.USAGE, Exit.DIED]
    record = json.loads((tmp_path / "sweep.json").read_text())
    assert record["schema"] == 1
    assert [(row["job"], row["status"], row["exit"]) for row in record["jobs"]] == [
        ("0", "PASS", 0),
        ("1", "USAGE", 2),
        ("10", "DIED", 3),
    ]
    assert record["jobs"][2]["overrides"] == ["pipeline=full", "slots=16"]
    assert "killed" in record["jobs"][2]["error"]


def test_a_row_holds_what_its_report_found(tmp_path):
    three_jobs(tmp_path)
    row = next(sweep.rows(tmp_path))
    assert row.id == "3f2ab0c94d1e"
    assert row.planned_for == "b200"
    assert row.diff is not None
    assert (row.diff.compared_steps, row.diff.mismatched_steps) == (192, 0)
    assert row.memory is not None
    assert row.memory.answer == "fits"
    assert row.memory.limits["max_concurrency"].surely == 8
    assert row.memory.workload.isl == 1024


def test_a_row_holds_each_term_with_its_range_and_status(tmp_path):
    three_jobs(tmp_path)
    sweep.write(tmp_path, Console(file=io.StringIO()))
    (row, *_) = SweepRecord.read(tmp_path).jobs
    assert row.memory is not None
    driver = row.memory.terms[-1]
    assert driver.model_dump() == {
        "id": "driver",
        "low": 498073600,
        "high": 4506200000,
        "status": "uncalibrated",
    }
    assert sum(term.low for term in row.memory.terms) == row.memory.low


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("none", None),
        ("build: 17347.6 MiB, headroom 13487.4 MiB with them, at 8 x (9 + 1)", "built, 16.9 GiB"),
        ("skip: 62451.0 MiB, headroom -1.0 MiB with them", "skipped, 61.0 GiB"),
        ("undecided, for once", "undecided"),
        (None, None),
    ],
)
def test_the_decision_on_the_experts_tables_is_told_short(tmp_path, line, told):
    record = examples.memory_record()
    facts = {} if line is None else {"expert tables": line}
    record["header"] = {**record["header"], "facts": facts}  # type: ignore[dict-item]
    folder = job(tmp_path, 0, "slots=1")
    outcome.write(folder, Exit.PASS, None, ["slots=1"])
    examples.report(memory=memory_section(record, examples.WORKLOAD)).write(folder)
    (row,) = sweep.rows(tmp_path)
    assert row.memory is not None
    assert row.memory.expert_tables == told


def test_a_row_counts_the_cases_of_every_mode(tmp_path):
    folder = job(tmp_path, 0)
    outcome.write(folder, Exit.FAIL, None, ["diff=all"])
    examples.report(diff=case_examples.bad()).write(folder)
    found = next(sweep.rows(tmp_path)).diff
    assert found is not None
    assert found.mode == "all"
    assert (found.compared_steps, found.mismatched_steps) == (2 * 6 * 32, 21)
    assert found.prefills_differ == 1


def test_the_table_shows_what_varies_and_the_first_line_of_an_error(tmp_path):
    three_jobs(tmp_path)
    out = io.StringIO()
    sweep.write(tmp_path, Console(file=out, width=160))
    _, title, upper, header, first, second, third, *_ = out.getvalue().splitlines()
    assert title.startswith("Sweep of 3 jobs")
    assert upper.split()[0] == "steps"
    assert header.split()[:4] == ["job", "pipeline", "slots", "status"]
    assert first.split()[:4] == ["0", "full", "1", "PASS"]
    assert second.split()[:4] == ["1", "0", "USAGE", "-"]
    assert "  #1: slots: must be at least 1" in [
        line.rstrip() for line in out.getvalue().splitlines()
    ]
    assert third.split()[:4] == ["10", "full", "16", "DIED"]


def test_a_job_that_never_started_is_a_row_too(tmp_path):
    outcome.write(job(tmp_path, 0), Exit.PASS, None, ["slots=1"])
    planned = [["slots=1"], ["slots=2"], ["slots=4"]]
    job(tmp_path, 1)  # killed before it wrote anything
    found = list(sweep.rows(tmp_path, planned))
    assert [(row.job, row.status, row.overrides) for row in found] == [
        ("0", "PASS", ("slots=1",)),
        ("1", "DIED", ("slots=2",)),
        ("2", "DIED", ("slots=4",)),
    ]
    assert [row.error for row in found[1:]] == [
        "the job left no outcome: it was killed",
        "the job never started",
    ]


def test_what_an_interrupt_cut_off_is_interrupted_not_dead(tmp_path):
    outcome.write(job(tmp_path, 0), Exit.PASS, None, ["slots=1"])
    job(tmp_path, 1)
    found = list(sweep.rows(tmp_path, [["slots=1"], ["slots=2"], ["slots=4"]], interrupted=True))
    assert [row.status for row in found] == ["PASS", "INTERRUPTED", "INTERRUPTED"]
    assert found[1].error == "interrupted before it ended"
    assert found[2].error == "interrupted before it started"


def test_a_report_that_cannot_be_read_is_told_and_the_others_are_shown(tmp_path):
    three_jobs(tmp_path)
    path = tmp_path / "0" / "report.json"
    path.write_text(path.read_text().replace('"verdict": "PASS"', '"verdict": "OK"'))
    (tmp_path / "1" / "outcome.json").write_text("{}")
    first, second, third = sweep.rows(tmp_path)
    assert (first.status, first.memory) == ("PASS", None)
    assert first.error is not None
    assert first.error.startswith(f"{path} can't be read: verdict: Input should be")
    assert (second.status, second.error) == (
        "DIED",
        f"{tmp_path / '1' / 'outcome.json'} is broken (KeyError: 'status')",
    )
    assert third.status == "DIED"


def test_folders_of_other_names_are_not_taken_for_numbers(tmp_path):
    folder = job(tmp_path, 0, "slots=1")
    folder.rename(tmp_path / "slots=1")
    found = list(sweep.rows(tmp_path, [["slots=1"], ["slots=2"]]))
    assert [row.job for row in found] == ["slots=1"]


def test_a_sweep_without_jobs_writes_nothing(tmp_path):
    assert sweep.write(tmp_path, Console(file=io.StringIO())) == []
    assert list(tmp_path.iterdir()) == []
