"""Launchers that run a sweep's jobs in other processes: what is missing, and who still runs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil
from omegaconf import DictConfig

__all__ = ["EXTRA", "Launched", "launched", "needs"]

EXTRA = "cluster"
"""The extra that installs them all."""
PACKAGES = {
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
}
CANCEL_S = 60.0
"""How long cancelled jobs get to end."""


def needs(name: str) -> str | None:
    """What must be installed for a launcher that isn't there; None of one that nobody knows."""
    package = PACKAGES.get(name)
    return package and f"hydra/launcher={name}: needs {package}; pip install 'metpipe[{EXTRA}]'"


class Submitted(Protocol):
    """A job that outlives the process that submitted it."""

    def cancel(self) -> None:
        """Ask it to end."""

    def wait(self, seconds: float | None) -> None:
        """Return when it has ended, or after so many seconds."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The launcher of a sweep."""

    name: str
    folder: Path | None = None
    """where submitit keeps a folder per job, named by the job's id"""

    def settle(self, *, interrupted: bool) -> None:
        """Return when no job of the sweep runs any more; of an interrupted one, cancel them.

        A launcher returns at the first job that was killed, also while submitted ones still run.
        """
        jobs = list(self._submitted())
        if interrupted and jobs:
            print(f"interrupted; {len(jobs)} submitted jobs are cancelled", file=sys.stderr)
            for job in jobs:
                job.cancel()
        for job in jobs:
            job.wait(CANCEL_S if interrupted else None)

    def _submitted(self) -> Iterator[Submitted]:
        if self.folder is None or not self.folder.is_dir():
            return
        ids = [path.parent.name for path in self.folder.glob("*/*_submitted.pkl")]
        for job_id in dict.fromkeys(ids):
            if self.name == "submitit_slurm":
                yield SlurmJob(self.folder / "%j", job_id)
            elif psutil.pid_exists(int(job_id)):
                yield LocalJob(int(job_id))


def launched(config: DictConfig) -> Launched:
    """The launcher that a sweep's config names."""
    hydra = config.hydra
    name = str(hydra.runtime.choices["hydra/launcher"])
    folder = hydra.launcher.get("submitit_folder")
    return Launched(name, None if folder is None else Path(str(folder)).parent)


class LocalJob:
    """A job of submitit_local: its id is that of the process that minds it, a child of ours."""

    def __init__(self, pid: int) -> None:
        with suppress(psutil.Error):
            self.process: psutil.Process | None = psutil.Process(pid)
            return
        self.process = None

    def cancel(self) -> None:
        """Interrupt it; it passes the interrupt on."""
        if self.process is not None:
            with suppress(psutil.Error):
                self.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float | None) -> None:
        """Until the process ends."""
        if self.process is not None:
            with suppress(psutil.Error):
                self.process.wait(seconds)


class SlurmJob:
    """A job of submitit_slurm."""

    def __init__(self, folder: Path, job_id: str) -> None:
        import submitit  # here, not above: it is there where its launcher is

        self.job = submitit.SlurmJob(folder, job_id)

    def cancel(self) -> None:
        """Call scancel."""
        self.job.cancel(check=False)

    def wait(self, seconds: float | None) -> None:
        """Until Slurm says that it ended."""
        import time

        end = None if seconds is None else time.monotonic() + seconds
        while not self.job.done() and (end is None or time.monotonic() < end):
            time.sleep(1.0)
