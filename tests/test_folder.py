"""The folder of a run or a sweep: one at a time has it, and nothing earlier passes for its."""

from __future__ import annotations

import json
import signal

import pytest

from metpipe.errors import Exit
from metpipe.folder import RECORDS, Claim, forget
from tests.command_lines import spawn, wait_for


def test_a_refused_run_leaves_no_record_of_the_run_before_it(metpipe, tmp_path):
    folder = tmp_path / "X"
    assert metpipe("seed=0", "hydra.run.dir=X").status is Exit.PASS
    for name in ("report.json", "traceback.txt"):
        (folder / name).write_text("{}")
    (folder / "stages").mkdir()
    assert metpipe("steps=1", "hydra.run.dir=X").status is Exit.USAGE
    assert not (folder / "report.json").exists()
    assert not (folder / "traceback.txt").exists()
    assert not (folder / "run.json").exists()  # of a config that was never whole
    assert json.loads((folder / "outcome.json").read_text())["status"] == "USAGE"
    assert (folder / "stages").is_dir()  # each is kept under what it is a result of


@pytest.mark.parametrize("name", ["report.json", "run.json", "outcome.json"])
def test_a_folder_in_a_record_s_place_is_refused_by_name(metpipe, tmp_path, name):
    (tmp_path / "X" / name).mkdir(parents=True)
    line = metpipe("seed=0", "hydra.run.dir=X")
    assert line.status is Exit.USAGE
    assert line.err.startswith(f"config error\nhydra.run.dir=X: its {name} is a folder")
    assert "Traceback" not in line.err


def test_two_runs_in_one_folder_at_once(metpipe, tmp_path):
    first = spawn("seed=99", "hydra.run.dir=X", cwd=tmp_path)
    wait_for(tmp_path, "X/waiting")
    kept = (tmp_path / "X" / ".hydra" / "overrides.yaml").read_text()
    second = metpipe("seed=0", "hydra.run.dir=X")
    assert second.status is Exit.USAGE
    assert second.err.startswith("config error\nhydra.run.dir=X: another run is at work in it")
    assert (tmp_path / "X" / ".hydra" / "overrides.yaml").read_text() == kept
    assert not (tmp_path / "X" / "outcome.json").exists()
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert metpipe("seed=0", "hydra.run.dir=X").status is Exit.PASS


def test_a_sweep_takes_no_row_from_an_earlier_one(metpipe, tmp_path):
    assert metpipe("-m", "seed=0,1", "hydra.sweep.dir=X").status is Exit.FAIL
    before = (tmp_path / "X" / "sweep.json").read_text()
    again = metpipe("-m", "steps=3,1", "hydra.sweep.dir=X")
    assert again.status is Exit.USAGE
    said = "config error\nhydra.sweep.dir=X: holds a job of an earlier sweep (0/)"
    assert again.err.startswith(said)
    assert again.out == ""
    assert (tmp_path / "X" / "sweep.json").read_text() == before


def test_a_run_cannot_be_repeated_over_itself(metpipe, tmp_path):
    assert metpipe("seed=0", "hydra.run.dir=X").status is Exit.PASS
    line = metpipe("rerun=X", "hydra.run.dir=X")
    assert line.status is Exit.USAGE
    assert line.err.startswith("config error\nrerun=X: is the folder that this run would write")
    assert (tmp_path / "X" / "run.json").is_file()


def test_a_sweep_over_a_glob_is_reported(metpipe, tmp_path):
    line = metpipe("-m", "seed=0", "hardware=glob(h1*)", "hydra.sweep.dir=X")
    assert line.status is Exit.PASS
    assert "sweep of 2 jobs" in line.out
    (tmp_path / "X" / "sweep.json").unlink()
    assert metpipe("sweep=X").status is Exit.PASS
    assert len(json.loads((tmp_path / "X" / "sweep.json").read_text())["jobs"]) == 2


def test_a_claim_ends_with_its_release(tmp_path):
    Claim(tmp_path / "X", "hydra.run.dir").release()
    Claim(tmp_path / "X", "hydra.run.dir").release()


def test_only_records_are_forgotten(tmp_path):
    for name in (*RECORDS, "mine.txt"):
        (tmp_path / name).touch()
    forget(tmp_path, "hydra.run.dir")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
