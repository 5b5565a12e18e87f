"""The command line, with a job that runs no model: statuses, help, completion, reruns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metpipe.errors import Exit
from tests.command_lines import ROOT, only, spawn, wait_for


@pytest.mark.parametrize("status", [Exit.PASS, Exit.FAIL, Exit.INCONCLUSIVE])
def test_a_job_s_status_is_the_exit_status(metpipe, tmp_path, status):
    assert metpipe(f"seed={int(status)}").status is status
    outcome = json.loads(only(tmp_path, "runs/*/*/outcome.json").read_text())
    assert outcome["status"] == status.name
    assert outcome["overrides"] == [f"seed={int(status)}"]


def test_a_bug_is_3_with_its_traceback_shown_and_kept(metpipe, tmp_path):
    line = metpipe("seed=13")
    assert line.status is Exit.DIED
    assert "RuntimeError: the disk is on fire" in line.err
    kept = only(tmp_path, "runs/*/*/traceback.txt").read_text()
    assert "RuntimeError: the disk is on fire" in kept


def test_a_config_error_of_the_job_is_2_without_a_traceback(metpipe):
    line = metpipe("seed=2")
    assert line.status is Exit.USAGE
    assert line.err == (
        "config error\ncheckpoint: no config.json in it\n    give a folder that has one\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["stepz=3"], ["stepz: there is no such key", "did you mean steps?"]),
        (["serve.block_sze=3"], ["there is no such key", "did you mean serve.block_size?"]),
        (["+stepz=3"], ["stepz: there is no such key, got 3", "'+stepz=3'"]),
        (["steps=1", "prompts=0"], ["steps: must be at least 2", "prompts: must be at least 1"]),
        (["hardware=b2000"], ["hardware=b2000: there is no such choice", "hardware=b200?"]),
        (["variant=[circuit,nope]"], ["variant=nope: there is no such choice", "choices of"]),
        (["diff=bath"], ["diff=bath: there is no such choice", "did you mean diff=batch?"]),
        (["batch=[2,1]"], ["batch.1: must be at least 2, got 1", "'batch=[2,1]'"]),
        (["steps=[1"], ["steps=[1: not an override that can be read", "write KEY=VALUE"]),
        (["tiny_dense"], ["tiny_dense: not an override that can be read"]),
        (["model.name=???"], ["model.name: must be given"]),
        (["seed=${nowhere}"], ["seed: refers to ${nowhere}", "'seed=${nowhere}'"]),
        (["--nonsense"], ["--nonsense: there is no such option"]),
        (["recipe=none.toml"], ["recipe=none.toml: there is no such file"]),
        (["rerun=none"], ["rerun=none: there is no none/.hydra/overrides.yaml"]),
        (["resume=none"], ["resume: there is no folder 'none'", "'resume=none'"]),
        (["+serve.block_size=5"], ["serve.block_size: is a key already", "leave the plus out"]),
        (["--config-name", "nope"], ["--config-name nope: there is no such config", "leave"]),
        (["--config-dir", "/nonexist"], ["--config-dir /nonexist: there is no such folder"]),
        (["hydra.run=null"], ["hydra.run=null: the key takes no such value; leave it out"]),
        (["model.note=${oc.env:NOPE}"], ["model.note: refers to the environment variable NOPE"]),
        (["-m", "seed=range(5,1)"], ["seed=range(5,1): holds no value, so the sweep has no job"]),
        (["pipeline=memory", "pipeline.memory=false"], ["pipeline: ", "'pipeline.memory=false'"]),
        (["-m", "steps=1,x", "hardware=nope"], ["hardware=nope: there is no such choice"]),
    ],
    ids=lambda value: value[0] if value and "=" in value[0] else "",
)
def test_wrong_input_is_2_and_a_few_clear_lines(metpipe, argv, said):
    line = metpipe(*argv)
    assert line.status is Exit.USAGE
    assert line.err.startswith("config error\n")
    for part in said:
        assert part in line.err
    assert "Traceback" not in line.err
    assert "HYDRA_FULL_ERROR" not in line.err
    assert len(line.err.splitlines()) <= 6
    assert line.out == ""


def test_nothing_is_left_behind_by_a_line_that_does_not_compose(metpipe, tmp_path):
    metpipe("hardware=nope")
    assert list(tmp_path.iterdir()) == []


def test_a_device_s_id_is_accepted_as_it_is_written(metpipe, tmp_path):
    assert metpipe("-m", "hardware=h200-sxm,b200").status is Exit.PASS
    ids = [
        json.loads(path.read_text())["config"]["hardware"]["id"]
        for path in sorted(tmp_path.glob("sweeps/*/*/*/run.json"))
    ]
    assert ids == ["h200-sxm", "b200"]


def test_a_rerun_says_whether_its_id_is_the_same(metpipe, tmp_path):
    metpipe("steps=4", "variant=[circuit]")
    first = only(tmp_path, "runs/*/*")
    run_id = json.loads((first / "run.json").read_text())["id"]
    assert f"same id {run_id}" in metpipe(f"rerun={first}").out
    assert "first difference: steps is 6, was 4" in metpipe(f"rerun={first}", "steps=6").out


def test_the_id_is_of_the_config_not_of_its_spelling(metpipe, tmp_path):
    metpipe("variant=all", "prompt_lengths=7")
    metpipe("prompt_lengths=[7]", "variant=[circuit,circuit_reference]")
    ids = {json.loads(p.read_text())["id"] for p in tmp_path.glob("runs/*/*/run.json")}
    assert len(ids) == 1


def test_a_recipe_is_in_the_snapshot_as_plain_overrides(metpipe, tmp_path):
    Path("r.toml").write_text("[choose]\nmodel = 'tiny_llama'\n[set]\nsteps = 4\n")
    assert metpipe("recipe=r.toml", "steps=5").status is Exit.PASS
    record = json.loads(only(tmp_path, "runs/*/*/run.json").read_text())
    assert record["overrides"] == ["model='tiny_llama'", "steps=4", "steps=5"]
    assert record["config"]["steps"] == 5


def test_the_snapshot_says_what_ran(metpipe, tmp_path):
    metpipe()
    record = json.loads(only(tmp_path, "runs/*/*/run.json").read_text())
    assert record["schema"] == 1
    assert len(record["id"]) == 12
    assert record["versions"]["hydra-core"].startswith("1.3.")
    assert record["machine"]["cores"] >= 1
    assert {"config", "overrides", "argv", "git", "python", "started", "cwd"} <= set(record)


def test_a_machine_without_git_runs_as_well(metpipe, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert metpipe().status is Exit.PASS
    assert json.loads(only(tmp_path, "runs/*/*/run.json").read_text())["git"] == ""


def test_showing_the_config_runs_no_job(metpipe, tmp_path):
    line = metpipe("--cfg", "job", "--resolve", "--package", "workload")
    assert line.status is Exit.PASS
    assert "isl: 1024" in line.out
    assert list(tmp_path.iterdir()) == []


def test_the_version_is_metpipe_s(metpipe):
    from metpipe import __version__

    assert metpipe("--version").out == f"metpipe {__version__}\n"


HEAVY = ("torch", "numba", "transformers", "safetensors", "gguf")


def test_help_imports_nothing_heavy(tmp_path):
    program = (
        "import sys; sys.argv = ['metpipe', '--help']\n"
        "from metpipe.app import main\n"
        "try: main()\n"
        f"finally: print([m for m in {HEAVY} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
    for part in ("Try these", "Exit status", "variant", "steps=16", "130", "recipe=", "hardware"):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 140


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("metpipe hardw", "hardware="),
        ("metpipe hardware=h2", "hardware=h200_sxm"),
        ("metpipe pipeline=mem", "pipeline=memory"),
        ("metpipe serve.gpu", "serve.gpu_memory_utilization="),
        ("metpipe -m variant=circuit_", "variant=circuit_reference"),
    ],
)
def test_tab_completes_groups_choices_and_keys(metpipe, monkeypatch, typed, offered):
    monkeypatch.setenv("COMP_LINE", typed)
    monkeypatch.setenv("COMP_POINT", str(len(typed)))
    line = metpipe("-sc", "query=bash")
    assert line.status is Exit.PASS
    assert offered in line.out.split()


def test_completion_prints_nothing_but_what_it_offers(tmp_path):
    typed = "metpipe model=tiny_d"
    child = spawn("-sc", "query=bash", cwd=tmp_path, COMP_LINE=typed, COMP_POINT=str(len(typed)))
    out, err = child.communicate()
    assert (child.returncode, out.split(), err) == (0, ["model=tiny_dense"], "")


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupted_run_is_130_and_says_so(tmp_path, kill):
    child = spawn("seed=99", cwd=tmp_path)
    wait_for(tmp_path, "runs/*/*/waiting")
    child.send_signal(kill)
    _, err = child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in err
    assert "interrupted before any stage was finished" in err
    outcome = json.loads(only(tmp_path, "runs/*/*/outcome.json").read_text())
    assert outcome["status"] == "INTERRUPTED"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupt_while_the_program_is_imported_is_130_too(tmp_path, number):
    program = (
        "import sys, metpipe.__main__ as program\n"
        "class Waits:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'metpipe.app':\n"
        "            import time; open('waiting', 'w').close(); time.sleep(60)\n"
        "sys.meta_path.insert(0, Waits())\n"
        "program.main()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(tmp_path, "waiting")
    child.send_signal(number)
    _, err = child.communicate()
    assert (child.returncode, err) == (130, "")


@pytest.mark.parametrize(("seed", "code"), [(0, 0), (1, 1), (2, 2), (13, 3), (4, 4)])
def test_the_process_leaves_with_the_status(tmp_path, seed, code):
    child = spawn(f"seed={seed}", cwd=tmp_path)
    child.communicate()
    assert child.returncode == code


@pytest.mark.parametrize(
    "argv", [["seed=0"], ["-m", "seed=0,1"], ["--help"], ["--version"], ["--cfg", "job"]], ids=str
)
def test_a_full_disk_behind_stdout_is_one_line_and_2(tmp_path, argv):
    with open("/dev/full", "w") as full:
        child = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "fake_job.py"), *argv],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert child.returncode == 2
    (line,) = child.stderr.splitlines()
    assert line.startswith("stdout: can't be written (No space left on device)")
    ended = {json.loads(p.read_text())["status"] for p in tmp_path.rglob("outcome.json")}
    assert ended == {"seed=0": {"PASS"}, "-m": {"PASS", "FAIL"}}.get(argv[0], set())


@pytest.mark.parametrize(("seed", "code"), [(0, 0), (1, 1), (2, 2), (13, 3)])
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-"])
def test_a_stderr_that_takes_nothing_changes_no_status(tmp_path, seed, code, stderr):
    job = ROOT / "tests" / "fake_job.py"
    done = subprocess.run(
        f"{sys.executable} {job} seed={seed} {stderr}",
        shell=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == code


def test_a_reader_that_leaves_is_no_error(tmp_path):
    done = subprocess.run(
        f"{sys.executable} {ROOT / 'tests' / 'fake_job.py'} seed=1 | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
