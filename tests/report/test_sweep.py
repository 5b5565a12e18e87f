"""sweep.json and its table: a row per job, whatever became of it."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from metpipe.errors import Exit
from metpipe.report import outcome, sweep
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
    assert row["id"] == "3f2ab0c94d1e"
    assert row["planned_for"] == "b200"
    assert (row["diff"]["compared_steps"], row["diff"]["mismatched_steps"]) == (192, 0)
    assert row["memory"]["answer"] == "fits"
    assert row["memory"]["max_concurrency"] == 8


def test_a_row_counts_the_cases_of_every_mode(tmp_path):
    folder = job(tmp_path, 0)
    outcome.write(folder, Exit.FAIL, None, ["diff=all"])
    examples.report(diff=case_examples.bad()).write(folder)
    found = next(sweep.rows(tmp_path))["diff"]
    assert found["mode"] == "all"
    assert (found["compared_steps"], found["mismatched_steps"]) == (2 * 6 * 32, 21)
    assert found["prefills_differ"] == 1


def test_the_table_shows_what_varies_and_the_first_line_of_an_error(tmp_path):
    three_jobs(tmp_path)
    out = io.StringIO()
    sweep.write(tmp_path, Console(file=out, width=160))
    _, title, header, first, second, third, _ = out.getvalue().splitlines()
    assert title.startswith("Sweep of 3 jobs")
    assert header.split()[:4] == ["job", "pipeline", "slots", "status"]
    assert first.split()[:4] == ["0", "full", "1", "PASS"]
    assert second.rstrip().endswith("slots: must be at least 1")
    assert third.split()[:4] == ["10", "full", "16", "DIED"]


def test_a_sweep_without_jobs_writes_nothing(tmp_path):
    assert sweep.write(tmp_path, Console(file=io.StringIO())) == []
    assert list(tmp_path.iterdir()) == []
