"""What every test shares: its marks, and a terminal of a fixed width."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metpipe import app
from tests import fake_job
from tests.command_lines import Line, Metpipe

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: test processes share the cores


@pytest.fixture(autouse=True)
def _fixed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich folds text by the terminal's width, which differs from machine to machine."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("FORCE_COLOR", raising=False)


@pytest.fixture
def metpipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Metpipe]:
    """Runs a command line in this process, in a fresh folder, with the fake job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "metpipe.stages.job", fake_job.module())
    monkeypatch.setattr(sys, "argv", ["metpipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    before = signal.getsignal(signal.SIGTERM)

    def run(*argv: str) -> Line:
        status = app.status_of(argv)
        captured = capsys.readouterr()
        return Line(status, captured.out, captured.err)

    yield run
    signal.signal(signal.SIGTERM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none, and say so."""
    gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU; this machine has none"))
