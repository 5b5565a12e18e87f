"""Runs for tests: composed by Hydra as a command line would be, or carried out in a subprocess."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from metpipe.config import Provenance, Run, validate
from metpipe.resources import conf_dir

__all__ = ["composed", "metpipe", "report_of"]


def composed(*overrides: str) -> Run:
    """The validated run of a command line."""
    with initialize_config_dir(config_dir=str(conf_dir()), version_base=None):
        config = compose("config", overrides=list(overrides))
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return validate({str(key): value for key, value in plain.items()}, Provenance((), {}))


def metpipe(
    *arguments: str, cwd: Path, env: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """`python -m metpipe ...` in `cwd`, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "metpipe", *arguments],
        cwd=cwd,
        env={**os.environ, "COLUMNS": "120", **(env or {})},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def report_of(folder: Path) -> dict[str, Any]:
    """The one report.json below a folder."""
    (path,) = folder.rglob("report.json")
    report: dict[str, Any] = json.loads(path.read_text())
    return report
