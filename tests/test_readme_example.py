"""The README's kernel folder, copied out of it, is judged as the README says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from metpipe.resources import kernels_dir

ROOT = Path(__file__).parents[1]


@pytest.fixture
def my_kernels(tmp_path) -> Path:
    folder = tmp_path / "my_kernels"
    folder.mkdir()
    for name in ("HARDWARE", "FAMILIES", "INVARIANCE"):
        shutil.copy(kernels_dir() / "cpu" / f"{name}.toml", folder)
    text = (ROOT / "README.md").read_text()
    for name, content in re.findall(r"```\w+\n# my_kernels/(\S+)\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(content)
    return folder


def judged(folder: Path) -> tuple[int, dict]:
    argv = ["pipeline=rule", "rule=my_add_rms_norm", "kernels=my_kernels", "device=cpu"]
    argv.append("hydra.run.dir=out")
    done = subprocess.run(
        [sys.executable, "-m", "metpipe", *argv],
        cwd=folder.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    report = folder.parent / "out" / "report.json"
    assert report.is_file(), done.stderr
    return done.returncode, json.loads(report.read_text())


@pytest.mark.slow
def test_the_readme_s_rule_keeps_its_claim(my_kernels):
    status, report = judged(my_kernels)
    assert (status, report["verdict"]) == (0, "PASS")
    assert report["rule"]["fused_launches"] < report["rule"]["chain_launches"]


@pytest.mark.slow
def test_the_same_rule_with_a_wrong_operand_is_refuted(my_kernels):
    """The norm reads the stream before the delta is added."""
    source = my_kernels / "my_norm.py"
    text = source.read_text()
    moved = text.replace("norm_row(total + at,", "norm_row(stream + at,")
    assert moved != text
    source.write_text(moved)
    status, report = judged(my_kernels)
    assert (status, report["verdict"]) == (1, "FAIL")
    assert report["reasons"]
