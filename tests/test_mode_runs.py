"""Whole runs of modes in subprocesses: what report.json holds of their cases, and what is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.runs import metpipe, report_of

QUICK = ("pipeline=diff", "model=tiny_dense", "steps=4")
NAMES = ["legacy-repeat", "circuit_reference", "circuit"]


def ran(folder: Path, *overrides: str) -> tuple[dict[str, Any], str]:
    """The diff's section of a run that passes, and what it printed in one line."""
    run = metpipe(*QUICK, *overrides, cwd=folder)
    assert run.returncode == 0, run.stdout + run.stderr
    diff: dict[str, Any] = report_of(folder)["diff"]
    assert diff["prompts"] == []
    assert {control["verdict"] for control in diff["controls"]} == {"ok"}
    for case in diff["cases"]:
        assert [row["variant"] for row in case["comparisons"]] == NAMES
        assert [row["variant"] for row in case["timings"]] == ["legacy", *NAMES]
        assert len(case["digests"]["steps"]) == case["steps"]
    return diff, " ".join(run.stdout.split())


def test_a_batch_says_its_rows_its_slots_and_what_was_changed(tmp_path):
    diff, shown = ran(tmp_path, "batch=[3]", "fragment_slots=true")
    (case,) = diff["cases"]
    assert (diff["mode"], case["mode"], case["name"]) == ("batch", "batch", "width 3, fragmented")
    assert (case["tokens"], case["rows"], case["slots"]) == ([12, 19, 26], 3, [0, 2, 3])
    assert case["fragment_slots"] is True
    assert case["changed_row"] == 1
    assert case["detection_control"]["first_mismatch"] == 2
    assert [row["rows"] for row in case["detection_control"]["differences"]] == [[1], [1]]
    assert {control["mode"] for control in diff["controls"]} == {"batch"}
    assert [0, 2, 3] in [slots for row in diff["launched"] for slots in row["slots"]]
    assert "circuit_reference and circuit judged over 8 steps in 1 case of batch" in shown
    assert "width 3, fragmented 12-26 0, 2-3" in shown
    assert "the sum of its forwards" in shown


def test_a_batched_verify_says_its_widths_and_its_accepts(tmp_path):
    diff, shown = ran(tmp_path, "verify_batch=[2]", "verify_batch_ks=[2,3]")
    assert [case["ks"] for case in diff["cases"]] == [[3, 3], [2, 2], [3, 2]]
    for case in diff["cases"]:
        assert (len(case["accepted"]), case["rows"]) == (4, sum(case["ks"]))
        for counts in case["accepted"]:
            assert all(0 <= n < k for n, k in zip(counts, case["ks"], strict=True))
    assert len(diff["controls"]) == 2 * 3 * 2
    assert "circuit, verify_batch: 6 of 6 seen where they were changed" in shown


def test_a_prefill_says_its_path(tmp_path):
    diff, _ = ran(tmp_path, "prefill=[17]", "prefill_chunk=[16]")
    assert [case["path"] for case in diff["cases"]] == ["Single", {"Chunked": 16}]
    assert [case["detection_control"]["prefill_equal"] for case in diff["cases"]] == [False] * 2
