"""Recipes, earlier runs, sweeps and folders that are wrong."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from metpipe import app
from metpipe.errors import Exit
from tests.bad_input.lines import DIFF, has


@pytest.mark.parametrize(
    ("name", "text", "more", "parts"),
    [
        ("r.toml", "[set", (), ["recipe=r.toml: not a TOML file"]),
        ("r.toml", "[chose]\nmodel='x'", (), ["unknown key 'chose'", "the tables choose, set"]),
        ("r.toml", "[set]\nstepz=3", (), ["'stepz=3' of recipe=r.toml", "steps?"]),
        ("r.toml", "[set]\nsteps='x'", (), ["steps: must be", "of recipe=r.toml"]),
        ("r.toml", "[choose]\nmodel='x'", (), ["model=x: there is", "of recipe=r.toml"]),
        ("r.toml", "[choose]\nmodel=3", (), ["model=3 of recipe=r.toml: takes the name"]),
        (
            "r.toml",
            "[choose]\nmodel='tiny_llama'",
            ("model=smollm2",),
            ["is a recipe for model=tiny_llama", "leave the model out"],
        ),
        ("r.yaml", "model: [", (), ["recipe=r.yaml: not a YAML file"]),
        ("r.yaml", "model: a/b", (), ["no model choice is named 'b'", "add model.checkpoint="]),
        (
            "r.yaml",
            "model: Qwen/Qwen3-8B\ndefaults: {foo: 1}",
            (),
            ["defaults.foo is no serve flag", "there are block_size"],
        ),
        ("r.json", "{}", (), ["a recipe is a .toml or a .yaml file"]),
    ],
    ids=[
        "no TOML", "unknown table", "unknown key", "wrong type", "unknown choice", "choice type",
        "another model", "no YAML", "unknown model", "unknown flag", "another file",
    ],
)  # fmt: skip
def test_a_bad_recipe(refused, name, text, more, parts):
    Path(name).write_text(text)
    has(refused(f"recipe={name}", *more), *parts)


def test_two_recipes_for_two_models(refused):
    Path("one.toml").write_text("[choose]\nmodel='tiny_llama'")
    Path("two.toml").write_text("[choose]\nmodel='smollm2'")
    message = refused("recipe=one.toml", "recipe=two.toml", lines=1)
    has(message, "recipe=two.toml: is for model=smollm2, and recipe=one.toml is for")
    has(message, "model=tiny_llama; give one of them")


@pytest.fixture
def earlier(capsys) -> Path:
    """A run's folder, of a run of a second."""
    assert app.status_of([*DIFF, "variant=circuit", "hydra.run.dir=earlier"]) is Exit.PASS
    capsys.readouterr()
    return Path("earlier")


def test_a_broken_earlier_run(refused, earlier):
    snapshot, overrides = earlier / "run.json", earlier / ".hydra" / "overrides.yaml"
    for broken in ("{", "[]", '{"config": {}}', '{"id": "x"}'):
        snapshot.write_text(broken)
        has(refused("rerun=earlier"), "earlier/run.json is broken", "remove it")
    for broken in ("a: [", "a: b"):
        overrides.write_text(broken)
        has(refused("rerun=earlier"), "rerun=earlier: ")
    overrides.write_text("- stepz=3\n")
    has(refused("rerun=earlier"), "the override 'stepz=3' of rerun=earlier")
    again = (*DIFF, "variant=circuit", "resume=earlier")
    for path in earlier.glob("stages/*/result.json"):
        path.write_text("{}\n")  # JSON, and no result
    has(refused(*again), "/result.json was changed after it was written", "remove that folder")
    for path in earlier.glob("stages/*/result.json"):
        path.write_text("{")
    has(refused(*again), "resume=earlier: ", "is broken", "remove that folder", "'resume=earlier'")
    shutil.rmtree(earlier / "stages")
    has(refused(*again), "holds no stage results", "give the folder of a run")


def test_a_wrong_job_of_a_sweep_stops_no_other(capsys):
    line = ["-m", "pipeline=memory", "workload.isl=100,5000,200"]
    assert app.status_of(line) is Exit.USAGE
    (path,) = Path("sweeps").rglob("sweep.json")
    jobs: list[dict[str, Any]] = json.loads(path.read_text())["jobs"]
    assert [job["status"] for job in jobs] == ["PASS", "USAGE", "PASS"]
    assert "above serve.max_seq_len" in jobs[1]["error"]
    written = {path.parent.name for path in Path("sweeps").rglob("report.txt")}
    assert written == {"0", "2"}, "a refused job leaves no empty report"
    capsys.readouterr()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("line", [["pipeline=memory"], ["-m", "pipeline=memory", "slots=1,2"]])
def test_a_folder_where_nothing_may_be_written(refused, tmp_path, line):
    tmp_path.chmod(0o555)
    try:
        has(refused(*line), "can't be used (Permission denied)", "run where you may write")
    finally:
        tmp_path.chmod(0o755)
