"""A job as a whole: what it refuses before a stage runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from rich.console import Console

from metpipe.errors import ConfigError
from metpipe.stages.job import run_job
from tests.runs import composed

OVERLAY = Path(__file__).parents[1] / "data" / "overlay_ok"


def refused(folder: Path, *overrides: str) -> str:
    """The message of a job that must leave nothing behind."""
    with pytest.raises(ConfigError) as refusal:
        run_job(composed("pipeline=diff", *overrides), folder, Console(quiet=True))
    assert list(folder.iterdir()) == []
    return str(refusal.value)


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("rules: [qvk]", "variants.mine.rules: no rule of "),
        ("rules: {without: [qvk]}", "variants.mine.rules: no rule of "),
        ("rules: all, levers: [by_rows]", "variants.mine.levers: no rule of "),
    ],
)
def test_a_misspelt_rule_or_lever_is_refused_before_a_stage_runs(tmp_path, variant, message):
    said = refused(tmp_path, f"+variants.mine={{forward: circuit, {variant}}}")
    assert said.startswith(message)


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('class = "hopper"', "class"),
        ('class = "cpu"\ncapabilities = ["amx"]', "capabilities"),
        ('class = "cpu"\nsettings = { tier = "fast" }', "settings"),
    ],
)
def test_a_folder_for_other_hardware_is_refused(tmp_path, line, key):
    folder, out = tmp_path / "kernels", tmp_path / "out"
    shutil.copytree(OVERLAY, folder)
    out.mkdir()
    table = folder / "HARDWARE.toml"
    table.write_text(table.read_text().replace('class = "cpu"', line))
    said = refused(out, f"kernels={folder}")
    assert said.startswith(f"{table}: {key} states ")
