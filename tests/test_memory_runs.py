"""Runs that plan this engine: several ranks, drafts, what would make a plan fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from metpipe.pipeline import StageContext
from metpipe.pipeline.progress import Silent
from metpipe.stages.live import Live
from metpipe.stages.memory import run_memory
from tests.runs import composed, metpipe, report_of

QUERIES = {
    "max_concurrency",
    "max_isl",
    "max_osl",
    "max_slots",
    "max_snapshot_slots",
    "max_verify",
    "min_utilization",
    "min_device",
}


def planned(*overrides: str) -> dict[str, Any]:
    """The memory section of a run, without a process of its own."""
    run = composed("pipeline=memory", *overrides)
    context = StageContext(Path("nowhere"), {}, {}, Silent(), Live(run, cast("Any", None)))
    return cast("dict[str, Any]", run_memory(context)["memory"])


def terms(memory: dict[str, Any]) -> dict[str, tuple[int, int]]:
    return {term["id"]: (term["low"], term["high"]) for term in memory["terms"]}


def test_a_size_that_the_config_leaves_to_its_class_is_said():
    left = "the config does not state head_dim=256: the sizes of the model's class"
    assert left in planned("model=tiny_hybrid", "~model.config.head_dim")["header"]["notes"]
    stated = planned("model=tiny_hybrid")["header"]["notes"]
    assert not [note for note in stated if "does not state" in note]


def test_ranks_are_shown_and_the_fullest_is_billed(tmp_path):
    run = metpipe(
        "pipeline=memory",
        "model=qwen3_8_27b_nvfp4",
        "hardware=h100_sxm",
        "serve.tensor_parallel_size=2",
        "serve.pipeline_parallel_size=2",
        "serve.speculative=true",
        "serve.num_drafts=3",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    memory = report_of(tmp_path)["memory"]
    first, last = memory["ranks"]
    assert (first["first"], first["last"], last["first"], last["last"]) == (0, 1, 2, 3)
    assert memory["fullest"] == 1
    assert list(terms(memory)["weights"]) == last["terms"]["weights"]
    for said in ("ranks 2 to 3 (the fullest)", "layers 32 to 63", "rank 2 of 4, the fullest"):
        assert said in run.stdout
    assert "collectives" in run.stdout


def test_every_question_is_asked_and_a_refused_plan_says_what_would_help(tmp_path):
    run = metpipe(
        "pipeline=memory",
        "model=qwen3_8b",
        "hardware=rtx_4090",
        "serve.max_seq_len=40960",
        "workload.isl=30000",
        "workload.concurrency=8",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    memory = report_of(tmp_path)["memory"]
    assert set(memory["inverse"]) == QUERIES
    assert memory["totals"]["answer"] == "does not fit"
    overrides = {fix["override"] for fix in memory["fixes"]}
    device = memory["inverse"]["min_device"]["surely"].replace("-", "_")
    assert f"hardware={device}" in overrides
    for fix in memory["fixes"]:
        assert f"{fix['override']} w" in run.stdout or f"{fix['override']} m" in run.stdout


@pytest.mark.parametrize("index", range(3))
def test_a_change_that_is_offered_is_true_when_it_is_made(index):
    asked = ("model=qwen3_8b", "hardware=l40s", "workload.concurrency=8", "workload.isl=3700")
    ceiling = "serve.gpu_memory_utilization=0.5"
    memory = planned(*asked, ceiling)
    assert memory["totals"]["answer"] != "fits"
    fix = memory["fixes"][index]
    changed = planned(*asked, ceiling, *fix["override"].split())
    assert changed["totals"]["answer"] == fix["answer"]
    assert changed["totals"]["headroom_low"] == fix["headroom_low"]


def test_another_device_is_taken_with_its_own_facts():
    """Those that were typed for the first one would be laid over it as well."""
    asked = ("model=qwen3_8b", "hardware=l4", "+hardware.memory_bytes=9000000000")
    memory = planned(*asked, "+hardware.sm_count=9")
    (fix,) = (fix for fix in memory["fixes"] if fix["override"].startswith("hardware="))
    device, *undone = fix["override"].split()
    assert undone == ["hardware.memory_bytes=null", "hardware.sm_count=null"]
    changed = planned(*asked, "+hardware.sm_count=9", *fix["override"].split())
    assert changed["header"]["device"] == device.partition("=")[2].replace("_", "-")
    assert changed["totals"]["headroom_low"] == fix["headroom_low"]
    assert changed["totals"]["answer"] == fix["answer"] != memory["totals"]["answer"]


def test_speculation_is_left_out_by_all_that_must_be_typed():
    """The drafts that were given are read by nobody once the serve does not speculate."""
    asked = ("model=qwen3_6_35b_a3b", "hardware=h200_sxm", "slots=64")
    drafts = ("serve.speculative=true", "serve.num_drafts=7")
    least = planned(*asked, *drafts)["inverse"]["min_utilization"]["surely"]
    tight = (*asked, *drafts, f"serve.gpu_memory_utilization={round(least - 0.001, 3)}")
    typed = "serve.speculative=false serve.num_drafts=null"
    (fix,) = [fix for fix in planned(*tight)["fixes"] if fix["override"] == typed]
    changed = planned(*tight, *typed.split())
    assert changed["totals"]["answer"] == fix["answer"] == "fits"
    assert changed["totals"]["headroom_low"] == fix["headroom_low"]


@pytest.mark.parametrize(
    ("model", "drafted"),
    [
        ("qwen3_8_27b_nvfp4", "attn.k"),
        ("qwen3_6_35b_a3b", "attn.k"),
        ("nemotron_3_super_120b_a12b_nvfp4", "attn.k"),
    ],
)
def test_published_hybrids_are_planned_with_drafts(model, drafted):
    speculating = ("serve.speculative=true", "serve.num_drafts=3")
    plain = planned(f"model={model}", "hardware=b200")
    memory = planned(f"model={model}", "hardware=b200", *speculating)
    assert [run["mode"] for run in memory["runs"]] == ["decode", "prefill", "verify", "draft"]
    assert drafted in {state["local"] for state in memory["states"] if state["section"] == "draft"}
    assert terms(memory)["states"][0] > terms(plain)["states"][0]
    assert memory["inverse"]["max_verify"]["surely"] is not None


def test_ten_thousand_loads_in_one_process(tmp_path):
    run = metpipe(
        "pipeline=memory",
        "model=qwen3_8_27b_nvfp4",
        "hardware=h100_sxm",
        "serve.max_seq_len=131072",
        "serve.max_batch_size=100",
        "grid.concurrency=1..100",
        "grid.isl=1024..102400/1024",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = report_of(tmp_path)
    grid = report["grid"]
    assert len(grid["headroom_low"]) == len(grid["headroom_high"]) == 10_000
    assert "10,000 loads, in" in run.stdout
    # the load of its own, 1024 prompt tokens and one sequence, is the grid's first
    assert grid["headroom_low"][0] == report["memory"]["totals"]["headroom_low"]
    assert list(Path(tmp_path).rglob("grid.png")) or "metpipe[plot]" in run.stdout


def test_a_model_made_for_less_is_asked_up_to_that():
    memory = planned("serve.max_seq_len=10000")
    assert memory["inverse"]["max_isl"]["high"] == 4096 - 256
    assert any("max_position_embeddings" in note for note in memory["header"]["notes"])


def test_this_machines_memory_is_its_groups_limit(monkeypatch):
    monkeypatch.setattr("metpipe.stages.devices.machine_memory", lambda: 3 * 2**30)
    assert planned()["header"]["device_bytes"] == 3 * 2**30
