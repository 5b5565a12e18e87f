"""The pipeline: what runs, what is taken from an earlier result, what survives a kill."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from metpipe.errors import ConfigError
from metpipe.pipeline import (
    LineBoard,
    Pipeline,
    PlanError,
    Stage,
    StageContext,
    Store,
    board,
)

RAN: list[str] = []


def note(context: StageContext) -> Mapping[str, object]:
    """Remember the call; hand on what the inputs said."""
    RAN.append(str(context.params["is"]))
    context.progress.total(2)
    context.progress.advance(2)
    (context.out / "data.bin").write_bytes(b"bytes")
    return {"is": context.params["is"], "inputs": sorted(context.inputs)}


def break_down(context: StageContext) -> Mapping[str, object]:
    raise ValueError("the disk is on fire\nand more")


def interrupt(context: StageContext) -> Mapping[str, object]:
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _forget() -> None:
    RAN.clear()


def stage(name: str, *needs: str, work=note, **params: object) -> Stage:
    return Stage(name, work, {"is": name, **params}, needs)


def diamond(**last: object) -> list[Stage]:
    return [stage("d", "b", "c", **last), stage("b", "a"), stage("c", "a"), stage("a")]


def quiet() -> LineBoard:
    return LineBoard(Console(file=io.StringIO()))


def run(stages: list[Stage], root: Path, *, facts: Mapping[str, object] | None = None, resume=()):
    pipeline = Pipeline(stages, facts=facts or {})
    return {e.stage: e.how for e in pipeline.run(Store(root), quiet(), resume=resume)}


def test_stages_run_behind_what_they_need(tmp_path):
    assert set(run(diamond(), tmp_path).values()) == {"ran"}
    assert RAN[0] == "a"
    assert RAN[-1] == "d"


def test_a_result_is_kept_with_its_files_and_its_record(tmp_path):
    pipeline = Pipeline(diamond(), facts={})
    list(pipeline.run(Store(tmp_path), quiet()))
    assert pipeline.result(Store(tmp_path), "d") == {"is": "d", "inputs": ["b", "c"]}
    assert (pipeline.path(Store(tmp_path), "d") / "data.bin").read_bytes() == b"bytes"
    about = json.loads((pipeline.path(Store(tmp_path), "d") / "stage.json").read_text())
    assert about["needs"] == {"b": pipeline.keys["b"], "c": pipeline.keys["c"]}


def test_a_second_run_takes_every_result(tmp_path):
    run(diamond(), tmp_path)
    RAN.clear()
    assert set(run(diamond(), tmp_path).values()) == {"cached"}
    assert RAN == []


def test_a_changed_parameter_runs_only_what_depends_on_it(tmp_path):
    run(diamond(), tmp_path)
    changed = [stage("b", "a", width=2) if s.name == "b" else s for s in diamond()]
    assert run(changed, tmp_path) == {"a": "cached", "b": "ran", "c": "cached", "d": "ran"}


@pytest.mark.parametrize("fact", ["device", "kernel_digests", "torch"])
def test_another_fact_is_another_result(tmp_path, fact):
    run(diamond(), tmp_path, facts={fact: "one"})
    assert set(run(diamond(), tmp_path, facts={fact: "two"}).values()) == {"ran"}


def test_changed_code_is_another_result(tmp_path, monkeypatch):
    run(diamond(), tmp_path)
    monkeypatch.setattr("metpipe.pipeline.content_key.code_digest", lambda: "edited")
    assert set(run(diamond(), tmp_path).values()) == {"ran"}


def test_the_code_digest_sees_an_edit_and_a_renamed_file(tmp_path):
    from metpipe.pipeline import code_digest

    (tmp_path / "a.py").write_text("x = 1\n")
    before = code_digest(tmp_path)
    code_digest.cache_clear()
    (tmp_path / "a.py").write_text("x = 2\n")
    edited = code_digest(tmp_path)
    code_digest.cache_clear()
    (tmp_path / "a.py").rename(tmp_path / "b.py")
    assert len({before, edited, code_digest(tmp_path)}) == 3


def test_an_edited_table_is_another_result(tmp_path):
    from metpipe.pipeline import code_digest

    (tmp_path / "circuits").mkdir()
    (tmp_path / "circuits" / "dense.toml").write_text("schema = 1\n")
    before = code_digest(tmp_path, "*.toml")
    code_digest.cache_clear()
    (tmp_path / "circuits" / "dense.toml").write_text("schema = 2\n")
    assert code_digest(tmp_path, "*.toml") != before


def test_a_repeat_of_the_same_work_is_never_served_from_the_first(tmp_path):
    twice = [Stage("reference", note, {"is": "x"}), Stage("repeat", note, {"is": "x"})]
    assert run(twice, tmp_path) == {"reference": "ran", "repeat": "ran"}
    assert len(RAN) == 2


def test_a_failure_skips_what_needs_it_and_leaves_the_rest(tmp_path):
    stages = [s if s.name != "b" else stage("b", "a", work=break_down) for s in diamond()]
    assert run(stages, tmp_path) == {"a": "ran", "b": "failed", "c": "ran", "d": "skipped"}
    assert set(run(diamond(), tmp_path).items()) >= {("a", "cached"), ("b", "ran"), ("d", "ran")}


def test_a_failed_stage_leaves_no_folder(tmp_path):
    pipeline = Pipeline([stage("a", work=break_down)], facts={})
    (event,) = pipeline.run(Store(tmp_path), quiet())
    assert isinstance(event.error, ValueError)
    assert [p for p in tmp_path.iterdir() if p.name != ".locks"] == []


def test_an_interrupt_passes_and_keeps_finished_work(tmp_path):
    stages = [stage("a"), stage("b", "a", work=interrupt), stage("c", "b")]
    with pytest.raises(KeyboardInterrupt):
        run(stages, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".partial"] == []
    assert run(stages[:1], tmp_path) == {"a": "cached"}


def test_resume_takes_results_of_another_run(tmp_path):
    run(diamond(), tmp_path / "old" / "stages")
    RAN.clear()
    old = Store.to_resume(tmp_path / "old")
    settled = run(diamond(wider=True), tmp_path / "new", resume=[old])
    assert settled == {"a": "cached", "b": "cached", "c": "cached", "d": "ran"}
    assert RAN == ["d"]
    assert len(list((tmp_path / "new").glob("*/data.bin"))) == 4  # the new run stands by itself


def test_resume_takes_the_store_of_the_sweep_behind_a_job(tmp_path):
    (tmp_path / "stages").mkdir()
    (tmp_path / "multirun.yaml").touch()
    (tmp_path / "0").mkdir()
    assert Store.to_resume(tmp_path / "0").root == tmp_path / "stages"
    assert Store.of_run(tmp_path / "0").root == tmp_path / "stages"


def test_resume_of_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="holds no stage results"):
        Store.to_resume(tmp_path)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([stage("a", "a")], "cycle: a -> a"),
        ([stage("a", "b"), stage("b", "a")], "cycle: "),
        ([stage("a", "z")], "needs 'z', which is not in the plan"),
        ([stage("a"), stage("a")], "two stages are named a"),
        ([stage("a", size=float("nan"))], "must be JSON"),
        ([stage("a", where=Path("/"))], "must be JSON"),
    ],
    ids=["itself", "two", "unknown", "twice", "nan", "path"],
)
def test_a_plan_that_is_no_graph_is_refused_by_name(stages, message):
    with pytest.raises(PlanError, match=message):
        Pipeline(stages, facts={})


def test_a_stage_must_return_a_record(tmp_path):
    (event,) = Pipeline([stage("a", work=lambda c: None)], facts={}).run(Store(tmp_path), quiet())
    assert event.how == "failed"
    assert "not a record" in str(event.error)


def test_without_a_terminal_each_stage_is_one_line(tmp_path):
    out = io.StringIO()
    lines = board(Console(file=out, width=80))
    stages = [stage("a"), stage("b", "a", work=break_down), stage("c", "b")]
    list(Pipeline(stages, facts={}).run(Store(tmp_path), lines))
    list(Pipeline(stages[:1], facts={}).run(Store(tmp_path), lines))
    said = [line.split() for line in out.getvalue().splitlines()]
    assert [line[:2] for line in said] == [
        ["a", "ran"],
        ["b", "failed"],
        ["c", "skipped"],
        ["a", "cached"],
    ]
    assert said[1][-5:] == ["the", "disk", "is", "on", "fire"]  # the first line of the error


def test_on_a_terminal_the_bars_leave_one_line_per_stage(tmp_path):
    out = io.StringIO()
    bars = board(Console(file=out, force_terminal=True, width=80))
    list(Pipeline(diamond(), facts={}).run(Store(tmp_path), bars))
    bars.close()
    assert out.getvalue().count("ran") == 4


SLOW = """
import io, os, sys, time
from pathlib import Path
from rich.console import Console
from metpipe.pipeline import LineBoard, Pipeline, Stage, Store

root = Path(sys.argv[1])

def quick(context):
    (root / "log").open("a").write("quick\\n")
    return {}

def slow(context):
    (root / "log").open("a").write("slow\\n")
    (context.out / "half").touch()
    time.sleep(float(context.params["sleep"]))
    return {"pid": os.getpid()}

stages = [Stage("quick", quick), Stage("slow", slow, {"sleep": sys.argv[2]}, ("quick",))]
board = LineBoard(Console(file=io.StringIO()))
for event in Pipeline(stages, facts={}).run(Store(root / "stages"), board):
    print(event.stage, event.how, flush=True)
"""


def start(root: Path, sleep: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(root), sleep], stdout=subprocess.PIPE, text=True
    )


def wait_for_log(root: Path, line: str) -> None:
    deadline = time.monotonic() + 20
    while line not in ((root / "log").read_text() if (root / "log").exists() else ""):
        assert time.monotonic() < deadline, f"no {line!r} in the log"
        time.sleep(0.01)


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_a_killed_run_resumes_behind_its_last_finished_stage(tmp_path, kill):
    first = start(tmp_path, "60")
    wait_for_log(tmp_path, "slow")
    os.kill(first.pid, kill)
    first.communicate()
    assert first.returncode != 0
    left = [p.name for p in (tmp_path / "stages").iterdir() if p.suffix == ".partial"]
    assert len(left) == (1 if kill is signal.SIGKILL else 0)
    (slow,) = left or ["none"]
    again = start(tmp_path, "60")  # the same key: clears the leftover, then works on it anew
    wait_for_log(tmp_path, "slow\nslow")
    partials = list((tmp_path / "stages").glob("*.partial"))
    assert [p.name for p in partials] != [slow]
    assert len(partials) == 1
    os.kill(again.pid, signal.SIGKILL)
    assert again.communicate()[0] == "quick cached\n"


def test_another_machine_s_work_is_not_taken_for_a_leftover(tmp_path):
    store = Store(tmp_path)
    theirs = tmp_path / f"key.elsewhere.{os.getpid()}.partial"
    theirs.mkdir()
    with store.claimed("key"), store.scratch("key") as out:
        (out / "result.json").write_text("{}")
    assert theirs.is_dir()
    assert store.has("key")


def test_of_two_processes_racing_for_a_key_one_works_and_both_have_it(tmp_path):
    racers = [start(tmp_path, "1"), start(tmp_path, "1")]
    said = [racer.communicate()[0].splitlines() for racer in racers]
    assert sorted(lines[1] for lines in said) == ["slow cached", "slow ran"]
    assert (tmp_path / "log").read_text().splitlines().count("slow") == 1


def test_a_folder_that_cannot_be_written_is_refused_by_its_key(tmp_path):
    (tmp_path / "stages").write_text("a file where the folder should be")
    with pytest.raises(ConfigError, match=f"hydra.run.dir={tmp_path}: its folder stages cannot be"):
        run([stage("a")], tmp_path / "stages")
