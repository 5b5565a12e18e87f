"""Sweeps whose jobs run in other processes: report and status are as here, whatever dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from metpipe import launchers

ROOT = Path(__file__).parents[1]
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
SUBMITIT = ("hydra/launcher=submitit_local",)

pytestmark = pytest.mark.slow


def start(*argv: str, cwd: Path, fake: bool = True) -> subprocess.Popen[str]:
    """A sweep in `cwd`; in all of its processes, the fake job takes the real one's place."""
    paths = [str(ROOT)] + [str(ROOT / "tests" / "fake_site")] * fake
    return subprocess.Popen(
        [sys.executable, "-m", "metpipe", "-m", "hydra.sweep.dir=sweep", *argv],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def jobs(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "sweep" / "sweep.json").read_text())["jobs"]
    return found


def statuses(folder: Path) -> list[str]:
    return [job["status"] for job in jobs(folder)]


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit"])
def test_a_bug_and_a_wrong_value_are_rows_and_the_gravest_is_the_status(tmp_path, launcher):
    child = start(*launcher, "seed=0,1,13,2", "recipe=r.toml", cwd=tmp_path)
    (tmp_path / "r.toml").write_text("[set]\nsteps = 4\n")
    out, err = child.communicate()
    assert child.returncode == 3
    assert statuses(tmp_path) == ["PASS", "FAIL", "DIED", "USAGE"]
    assert [job["overrides"] for job in jobs(tmp_path)][1] == ["seed=1", "steps=4"]
    assert jobs(tmp_path)[2]["error"] == "RuntimeError: the disk is on fire"
    assert "Sweep of 4 jobs" in out
    assert "lost a job" not in err
    record = json.loads((tmp_path / "sweep" / "0" / "run.json").read_text())
    assert "hydra.sweep.dir=sweep" in record["argv"]  # the line that was typed, not the worker's


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit"])
def test_a_refused_value_is_told_with_the_file_that_set_it(tmp_path, launcher):
    (tmp_path / "r.toml").write_text("[set]\nprompts = 0\n")
    child = start(*launcher, "recipe=r.toml", "seed=0,4", cwd=tmp_path)
    child.communicate()
    assert child.returncode == 2
    assert all("of recipe=r.toml" in job["error"] for job in jobs(tmp_path))


def test_a_killed_worker_of_joblib_ends_the_sweep_and_each_job_has_its_row(tmp_path):
    child = start(*JOBLIB, "seed=0,9,1,0,0,0,0,0", cwd=tmp_path)
    out, err = child.communicate()
    assert child.returncode == 3
    found = jobs(tmp_path)
    assert len(found) == 8
    assert found[1]["status"] == "DIED"
    assert found[1]["error"] == "the job left no outcome: it was killed"
    assert found[7]["error"] == "the job never started"
    assert found[7]["overrides"] == ["seed=0"]
    assert err.startswith("hydra/launcher=joblib lost a job: TerminatedWorkerError")
    assert "Traceback" not in err
    assert "Traceback" in (tmp_path / "sweep" / "launcher.txt").read_text()
    assert "Sweep of 8 jobs" in out


def test_behind_a_killed_job_of_submitit_the_others_are_waited_for(tmp_path):
    child = start(*SUBMITIT, "seed=9,7,4,13", cwd=tmp_path)
    _, err = child.communicate()
    assert child.returncode == 3
    assert statuses(tmp_path) == ["DIED", "PASS", "INCONCLUSIVE", "DIED"]
    assert err.startswith("hydra/launcher=submitit_local lost a job: UncompletedJobError")
    assert "Traceback" not in err


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_an_interrupt_ends_the_jobs_and_is_130(tmp_path, launcher, number):
    child = start(*launcher, "seed=0,99,99,99", cwd=tmp_path)
    deadline = time.monotonic() + 60
    sweep = tmp_path / "sweep"
    while not (sweep / "0" / "outcome.json").exists() or not (sweep / "1" / "waiting").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child.send_signal(number)
    begin = time.monotonic()
    _, err = child.communicate()
    assert time.monotonic() - begin < 40  # a job that goes on would take 60 s
    assert child.returncode == 130
    assert "Traceback" not in err
    assert statuses(tmp_path) == ["PASS", "INTERRUPTED", "INTERRUPTED", "INTERRUPTED"]


@pytest.mark.parametrize("launcher", [JOBLIB, SUBMITIT], ids=["joblib", "submitit"])
def test_a_memory_only_sweep_decodes_nothing_in_any_process(tmp_path, launcher):
    line = ("pipeline=memory", "model=tiny_dense", "workload.concurrency=1,2,4", "workload.isl=9")
    child = start(*launcher, *line, cwd=tmp_path, fake=False)
    out, err = child.communicate()
    assert child.returncode == 0, err
    kept = [json.loads(p.read_text()) for p in tmp_path.glob("sweep/stages/*/stage.json")]
    assert [stage["name"] for stage in kept] == ["memory"] * 3
    assert len({stage["pid"] for stage in kept} - {os.getpid(), child.pid}) >= 1
    totals = [job["memory"]["high"] for job in jobs(tmp_path)]
    assert totals == sorted(set(totals))
    assert not list(tmp_path.glob("sweep/stages/*.partial"))
    assert (tmp_path / "sweep" / "sweep.png").is_file()
    assert "Sweep of 3 jobs" in out


def test_jobs_that_run_at_once_share_one_reference(tmp_path):
    line = ("pipeline=diff", "model=tiny_dense", "variant=[circuit]", "steps=2", "prompts=1")
    child = start(*JOBLIB, *line, "memory.must_fit=true,false", cwd=tmp_path, fake=False)
    _, err = child.communicate()
    assert child.returncode == 0, err
    kept = [json.loads(p.read_text())["name"] for p in tmp_path.glob("sweep/stages/*/stage.json")]
    assert sorted(kept) == sorted(set(kept))  # each stage once, whichever job came first
    how = [
        {stage["name"]: stage["how"] for stage in json.loads(path.read_text())["stages"]}
        for path in sorted(tmp_path.glob("sweep/*/report.json"))
    ]
    assert sorted(job["reference"] for job in how) == ["cached", "ran"]


@pytest.mark.parametrize("name", ["joblib", "submitit_slurm", "ray"])
def test_a_launcher_that_is_not_installed_is_told_with_what_installs_it(name):
    said = launchers.needs(name)
    assert said is not None
    assert said.startswith(f"hydra/launcher={name}: needs hydra-")
    assert "metpipe[cluster]" in said


def test_a_launcher_that_nobody_knows_needs_nothing():
    assert launchers.needs("nope") is None
