"""Whole runs in subprocesses: each exit status, what a FAIL leaves behind, kill, resume, rerun."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.runs import metpipe, report_of

DATA = Path(__file__).parent / "data"
QUICK = ("pipeline=diff", "steps=4", "prompts=1")
AGAIN = "+variants.again={forward: circuit, rules: reference}"


def test_a_default_run_passes_and_says_why(tmp_path):
    run = metpipe("steps=6", "prompts=2", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == "PASS"
    assert report["reasons"] == []
    (first, second) = report["diff"]["prompts"]
    assert (first["tokens"], second["tokens"]) == (23, 64)
    names = [row["variant"] for row in first["comparisons"]]
    assert names == ["legacy-repeat", "circuit_reference", "circuit"]
    assert all(row["steps"] == 6 and row["num_states"] == 16 for row in first["comparisons"])
    assert {control["verdict"] for control in report["diff"]["controls"]} == {"ok"}
    assert [control["changed_step"] for control in report["diff"]["controls"]] == [3, 3]
    assert all(check["passed"] for check in report["diff"]["self_test"])
    assert all(row["agrees"] for row in report["ledger"]["rows"])
    assert report["executed_on"]["device"] == "cpu"
    assert len(first["digests"]["steps"]) == 6


def test_a_kernel_that_writes_wrong_bits_fails_and_leaves_its_report(tmp_path):
    run = metpipe(*QUICK, f"kernels={DATA / 'overlay_wrong'}", cwd=tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == "FAIL"
    assert "circuit" in report["reasons"][0]
    by_name = {row["variant"]: row for row in report["diff"]["prompts"][0]["comparisons"]}
    assert by_name["circuit"]["prefill_equal"] is False
    assert by_name["circuit"]["severity"]["max_abs"] > 0
    for built_in in ("legacy-repeat", "circuit_reference"):
        assert by_name[built_in]["prefill_equal"]
        assert by_name[built_in]["mismatched_steps"] == 0


def test_the_right_kernel_of_a_folder_passes_and_its_rule_ran(tmp_path):
    run = metpipe(*QUICK, f"kernels={DATA / 'overlay_ok'}", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    variants = {row["name"]: row for row in report_of(tmp_path)["diff"]["variants"]}
    assert "product_add" in variants["circuit"]["rules"]
    assert "product_add" not in variants["circuit_reference"]["rules"]


def test_past_the_keep_limit_the_differing_steps_are_decoded_again(tmp_path):
    wrong = f"kernels={DATA / 'overlay_wrong'}"
    kept, spilt = tmp_path / "kept", tmp_path / "spilt"
    for folder in (kept, spilt):
        folder.mkdir()
    assert metpipe(*QUICK, wrong, cwd=kept).returncode == 1
    assert metpipe(*QUICK, wrong, "keep_logits=0", cwd=spilt).returncode == 1
    found = [
        report_of(folder)["diff"]["prompts"][0]["comparisons"][2]["differences"]
        for folder in (kept, spilt)
    ]
    assert found[0] == found[1]
    assert found[0][0]["unequal_bytes"] > 0


def test_a_program_compared_with_itself_proves_nothing(tmp_path):
    run = metpipe(*QUICK, "variant=circuit_reference", AGAIN, cwd=tmp_path)
    assert run.returncode == 4, run.stdout + run.stderr
    assert "vacuous" in report_of(tmp_path)["reasons"][0]


def test_vacuous_is_allowed_where_the_variant_says_so(tmp_path):
    allowed = AGAIN.replace("}", ", allow_vacuous: true}")
    assert metpipe(*QUICK, "variant=circuit_reference", allowed, cwd=tmp_path).returncode == 0


def raising(folder: Path, body: str) -> Path:
    """A folder whose kernel's binder does this alone."""
    shutil.copytree(DATA / "overlay_ok", folder)
    source = folder / "product_add.py"
    text = source.read_text()
    start = text.index("def product_add(")
    source.write_text(text[:start] + f"def product_add(**_):\n    {body}\n")
    return folder


@pytest.mark.parametrize(
    ("body", "when"),
    [
        ("raise ZeroDivisionError('no luck')", "bound"),
        ("return lambda: 1 // 0 + int('no luck')", "launched"),
    ],
)
def test_a_kernel_of_a_folder_that_raises_is_wrong_input_and_names_its_rule(tmp_path, body, when):
    broken = raising(tmp_path / "broken", body)
    run = metpipe(*QUICK, f"kernels={broken}", cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    said = " ".join((run.stdout + run.stderr).split())
    assert "rule product_add: its kernel " in said
    assert f"raised when it was {when}: ZeroDivisionError" in said
    assert "Traceback" not in said


def test_a_folders_rule_takes_part_in_the_invariance_table_alone(tmp_path):
    table = ("diff=invariance", "max_width=2", "steps=2", "variant=circuit", "pipeline=diff")
    run = metpipe("model=tiny_dense", *table, f"kernels={DATA / 'overlay_ok'}", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr


def test_a_kernel_that_does_not_compile_is_wrong_input_and_names_its_rule(tmp_path):
    broken = raising(
        tmp_path / "broken", "raise RuntimeError('kernel product_add does not compile')"
    )
    run = metpipe(*QUICK, f"kernels={broken}", cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    said = " ".join((run.stdout + run.stderr).split())
    assert "rule product_add: its kernel" in said
    assert "does not compile" in said
    assert "Traceback" not in said


def test_memory_that_must_fit_and_does_not_is_a_failure(tmp_path):
    plan = ("pipeline=memory", "model=qwen3_8b", "hardware=b200", "serve.max_seq_len=300000")
    load = ("workload.isl=290000", "workload.concurrency=8")
    over = metpipe(*plan, *load, cwd=tmp_path)
    assert over.returncode == 0, over.stdout + over.stderr
    assert metpipe(*plan, *load, "memory.must_fit=true", cwd=tmp_path).returncode == 1


LONG = ("pipeline=diff", "steps=800", "prompts=1", "hydra.run.dir=run")


def start(cwd: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "metpipe", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "120"},
    )


def wait_for_stage(folder: Path, stage: str, process: subprocess.Popen[str]) -> None:
    """Until a stage's result is there."""
    limit = time.monotonic() + 120
    while time.monotonic() < limit:
        for path in folder.glob("run/stages/*/stage.json"):
            if json.loads(path.read_text())["name"] == stage:
                return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    pytest.fail(f"{stage} was not reached")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupt_keeps_what_is_finished(tmp_path, number):
    process = start(tmp_path, *LONG)
    wait_for_stage(tmp_path, "reference", process)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130, out
    assert "Traceback" not in out
    assert list(tmp_path.glob("run/stages/*.partial")) == []
    names = {json.loads(p.read_text())["name"] for p in tmp_path.glob("run/stages/*/stage.json")}
    assert {"load", "reference"} <= names
    assert f"finished stages are kept: resume={tmp_path / 'run'}" in out


def test_a_killed_run_is_resumed_and_its_reference_is_not_run_again(tmp_path):
    process = start(tmp_path, *LONG)
    wait_for_stage(tmp_path, "reference", process)
    process.kill()
    process.communicate(timeout=60)
    resumed = metpipe(*LONG[:-1], "resume=run", "hydra.run.dir=again", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    stages = {row["name"]: row for row in report_of(tmp_path / "again")["stages"]}
    assert stages["reference"]["how"] == "cached"
    assert stages["repeat:1"]["how"] == "ran"


def test_the_repeat_is_never_served_from_the_reference(tmp_path):
    assert metpipe(*QUICK, "repeat=2", "hydra.run.dir=run", cwd=tmp_path).returncode == 0
    stages = {row["name"]: row["how"] for row in report_of(tmp_path)["stages"]}
    assert stages["repeat:1"] == stages["repeat:2"] == "ran"
    keys = [path.name for path in tmp_path.glob("run/stages/*") if path.is_dir()]
    assert len(keys) == len(set(keys)) >= 9


def test_a_rerun_has_the_same_id(tmp_path):
    assert metpipe(*QUICK, "hydra.run.dir=first", cwd=tmp_path).returncode == 0
    again = metpipe("rerun=first", "hydra.run.dir=second", cwd=tmp_path)
    assert again.returncode == 0
    assert "same id" in again.stdout
    ids = [
        json.loads((tmp_path / name / "run.json").read_text())["id"] for name in ("first", "second")
    ]
    assert ids[0] == ids[1]
    other = metpipe("rerun=first", "steps=5", "hydra.run.dir=third", cwd=tmp_path)
    assert "first difference: steps is 5, was 4" in " ".join(other.stdout.split())


def test_a_sweep_over_slots_and_devices_has_six_rows(tmp_path):
    run = metpipe("-m", "slots=1,4,16", "hardware=h200_sxm,b200", "pipeline=memory", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = tmp_path.rglob("sweep.json")
    rows = json.loads(path.read_text())
    jobs = rows["jobs"] if isinstance(rows, dict) else rows
    assert len(jobs) == 6


def test_a_difference_is_traced_to_its_rule_its_layer_and_its_op(tmp_path):
    wrong = f"kernels={DATA / 'overlay_wrong'}"
    run = metpipe(*QUICK, "model=tiny_dense", wrong, cwd=tmp_path)
    assert run.returncode == 1, run.stdout + run.stderr
    (found,) = report_of(tmp_path)["diff"]["localized"]
    assert (found["variant"], found["prompt"], found["step"]) == ("circuit", 0, None)
    assert (found["layer"], found["op"], found["rule"]) == (0, "residual_add", "product_add")
    assert found["node"] == "l0.attn.add"
    assert "on its own the rule product_add moves bits" in found["sentence"]


def test_a_finished_diff_is_reported_even_when_a_later_stage_refuses(tmp_path):
    """Transformers cannot read a safetensors file of another name; metpipe can."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=300,
        max_position_embeddings=64,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "model")
    (tmp_path / "model/model.safetensors").rename(tmp_path / "model/weights.safetensors")
    run = metpipe(*QUICK, "model.checkpoint=model", "oracle=transformers", cwd=tmp_path)
    assert run.returncode == 2, run.stdout + run.stderr
    report = report_of(tmp_path / "runs")
    assert report["verdict"] == "USAGE"
    assert report["diff"]["prompts"][0]["comparisons"][2]["mismatched_steps"] == 0
