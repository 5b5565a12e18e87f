"""Sweeps on the command line, with jobs that run no model: statuses, reports, what is refused."""

from __future__ import annotations

import json
import shutil
import signal

from metpipe.errors import Exit
from tests.command_lines import only, spawn, wait_for


def test_a_sweep_runs_on_behind_a_dead_job_and_exits_with_the_gravest(metpipe, tmp_path):
    line = metpipe("steps=4", "-m", "seed=0,13,1")  # -m may stand anywhere
    assert line.status is Exit.DIED
    sweep = json.loads(only(tmp_path, "sweeps/*/*/sweep.json").read_text())
    assert [job["status"] for job in sweep["jobs"]] == ["PASS", "DIED", "FAIL"]
    assert set(sweep["jobs"][1]["overrides"]) == {"seed=13", "steps=4"}
    assert sweep["jobs"][1]["error"] == "RuntimeError: the disk is on fire"
    assert "Sweep of 3 jobs" in line.out


def test_a_sweep_goes_on_behind_a_job_with_a_wrong_value(metpipe, tmp_path):
    assert metpipe("-m", "steps=1,3").status is Exit.USAGE
    sweep = json.loads(only(tmp_path, "sweeps/*/*/sweep.json").read_text())
    assert [job["status"] for job in sweep["jobs"]] == ["USAGE", "PASS"]
    assert sweep["jobs"][0]["error"].startswith("steps: must be at least 2, got 1")


def test_an_interrupted_sweep_is_130_and_reports_what_it_has(tmp_path):
    child = spawn("-m", "seed=0,99,0", cwd=tmp_path)
    wait_for(tmp_path, "sweeps/*/*/1/waiting")
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate()
    assert child.returncode == 130
    assert "Traceback" not in err
    sweep = json.loads(only(tmp_path, "sweeps/*/*/sweep.json").read_text())
    assert [job["status"] for job in sweep["jobs"]] == ["PASS", "INTERRUPTED", "INTERRUPTED"]
    assert sweep["jobs"][2]["error"] == "interrupted before it started"
    assert "Sweep of 3 jobs" in out


def test_each_job_of_a_sweep_is_a_line_and_its_report_a_file(metpipe, tmp_path):
    line = metpipe("-m", "seed=0,13", "steps=3,4", "prompts=1")
    head, *jobs = line.out.splitlines()[:5]
    assert head.startswith("sweep of 4 jobs, launcher basic: sweeps/")
    assert jobs[0].split() == ["job", "with", "seed", "0"]
    assert line.out.count("#0 ") == 1
    shown = [" ".join(text.split()) for text in line.out.splitlines() if text.startswith("#")]
    assert shown == [
        "#0 PASS seed=0 steps=3",
        "#1 PASS seed=0 steps=4",
        "#2 DIED seed=13 steps=3 RuntimeError: the disk is on fire",
        "#3 DIED seed=13 steps=4 RuntimeError: the disk is on fire",
    ]
    assert len(list(tmp_path.glob("sweeps/*/*/*/report.txt"))) == 4


def test_a_sweep_s_report_is_made_again(metpipe, tmp_path):
    assert metpipe("-m", "seed=0,4").status is Exit.INCONCLUSIVE
    folder = only(tmp_path, "sweeps/*/*")
    written = (folder / "sweep.json").read_text()
    (folder / "sweep.json").unlink()
    again = metpipe(f"sweep={folder}")
    assert again.status is Exit.INCONCLUSIVE
    assert "Sweep of 2 jobs" in again.out
    assert (folder / "sweep.json").read_text() == written
    shutil.rmtree(folder / "1")
    assert "the job never started" in metpipe(f"sweep={folder}").out


def test_a_folder_that_is_no_sweep_s_is_2(metpipe, tmp_path):
    metpipe("seed=0")
    run = only(tmp_path, "runs/*/*")
    for argv, said in (
        ((f"sweep={run}",), "give the folder of a sweep"),
        (("sweep=none",), "there is no none/multirun.yaml"),
        (("sweep=none", "seed=1"), "takes no other arguments"),
    ):
        line = metpipe(*argv)
        assert line.status is Exit.USAGE
        assert line.err.startswith("config error\nsweep=")
        assert said in line.err


def test_one_unknown_choice_refuses_the_whole_sweep_before_its_first_job(metpipe, tmp_path):
    line = metpipe("-m", "hardware=b200,nope")
    assert line.status is Exit.USAGE
    assert line.err.startswith("config error\nhardware=nope: there is no such choice")
    assert list(tmp_path.rglob("outcome.json")) == []
    assert "Sweep of" not in line.out


def test_an_unknown_launcher_is_2_with_those_there_are(metpipe):
    line = metpipe("-m", "seed=0,1", "hydra/launcher=nope")
    assert line.status is Exit.USAGE
    assert "hydra/launcher=nope: there is no such launcher" in line.err
    assert "basic, joblib, submitit_local, submitit_slurm, ray" in line.err
