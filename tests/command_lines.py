"""Command lines with a job that runs no model: in this process, or in one of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from metpipe.errors import Exit

__all__ = ["ROOT", "Line", "Metpipe", "only", "spawn", "wait_for"]

ROOT = Path(__file__).parents[1]


class Line:
    """One command line that ran: its status and what it printed."""

    def __init__(self, status: Exit, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err


Metpipe = Callable[..., Line]


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def spawn(*argv: str, cwd: Path, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "tests" / "fake_job.py"), *argv],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 30
    while not list(folder.glob(pattern)):
        assert time.monotonic() < deadline, f"no {pattern} in {folder}"
        time.sleep(0.02)
