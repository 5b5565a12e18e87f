"""Launchers that run a sweep's jobs in other processes: what is missing, and who still runs."""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from omegaconf import DictConfig

__all__ = ["EXTRA", "Launched", "launched", "lost", "needs"]

EXTRA = "cluster"
"""The extra that installs them all."""
PACKAGES = {
    "joblib": "hydra-joblib-launcher",
    "submitit_local": "hydra-submitit-launcher",
    "submitit_slurm": "hydra-submitit-launcher",
    "ray": "hydra-ray-launcher",
    "ray_aws": "hydra-ray-launcher",
}
RAY = ("ray", "ray_aws")
CANCEL_S = 10.0
"""How long cancelled jobs get to end."""
LOOK_S = 0.2


def needs(name: str) -> str | None:
    """What must be installed for a launcher that isn't there; None of one that nobody knows."""
    package = PACKAGES.get(name)
    return package and f"hydra/launcher={name}: needs {package}; pip install 'metpipe[{EXTRA}]'"


class Submitted(Protocol):
    """A job that outlives the process that submitted it."""

    def runs(self) -> bool:
        """Whether it has not ended yet."""

    def cancel(self) -> None:
        """Ask it to end."""

    def kill(self) -> None:
        """End it, if there is a way that asks nobody."""


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
        jobs = [job for job in self._submitted() if job.runs()]
        if interrupted and jobs:
            print("interrupted; jobs that were submitted are cancelled", file=sys.stderr)
            for job in jobs:
                job.cancel()
            _wait(jobs, CANCEL_S)
            for job in jobs:
                job.kill()
        else:
            _wait(jobs)

    def _submitted(self) -> Iterator[Submitted]:
        if self.name in RAY:
            yield RayTasks()
        if self.folder is None or not self.folder.is_dir():
            return
        ids = [path.parent.name for path in self.folder.glob("*/*_submitted.pkl")]
        for job_id in dict.fromkeys(ids):
            if self.name == "submitit_slurm":
                yield SlurmJob(self.folder / "%j", job_id)
            else:
                yield LocalJob(int(job_id))


def _wait(jobs: Sequence[Submitted], seconds: float | None = None) -> None:
    """Until all have ended, or for so long."""
    end = None if seconds is None else time.monotonic() + seconds
    while any(job.runs() for job in jobs) and (end is None or time.monotonic() < end):
        time.sleep(LOOK_S)


def launched(config: DictConfig) -> Launched:
    """The launcher that a sweep's config names."""
    hydra = config.hydra
    name = str(hydra.runtime.choices["hydra/launcher"])
    folder = hydra.launcher.get("submitit_folder")
    return Launched(name, None if folder is None else Path(str(folder)).parent)


def lost(config: DictConfig, error: Exception) -> str | None:
    """What a launcher says of a job that it lost, in a line; None where no other process ran jobs.

    Jobs never raise, so an error that comes through a launcher is its own. The whole of it is kept
    in the sweep's folder.
    """
    name = launched(config).name
    if name == "basic":
        return None
    kept = Path(str(config.hydra.sweep.dir)) / "launcher.txt"
    with suppress(OSError):
        kept.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    first = next(iter(str(error).strip().splitlines()), "").partition(". ")[0]
    return f"hydra/launcher={name} lost a job: {type(error).__name__}: {first}\n    more in {kept}"


class LocalJob:
    """A job of submitit_local: its id is that of the process that minds it, a child of ours."""

    def __init__(self, pid: int) -> None:
        try:
            self.process: psutil.Process | None = psutil.Process(pid)
        except psutil.NoSuchProcess:
            self.process = None

    def runs(self) -> bool:
        """Whether the process is there; one that nobody has waited for is not."""
        if self.process is None:
            return False
        try:
            return bool(self.process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    def cancel(self) -> None:
        """Interrupt what it minds: it then ends without a word, as it would not if interrupted."""
        if self.process is not None:
            with suppress(psutil.NoSuchProcess):
                for child in self.process.children():
                    child.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill it and what it started: an interrupt may be ignored."""
        if not self.runs() or self.process is None:
            return
        with suppress(psutil.NoSuchProcess):
            for process in (*self.process.children(recursive=True), self.process):
                process.kill()


class SlurmJob:
    """A job of submitit_slurm."""

    def __init__(self, folder: Path, job_id: str) -> None:
        import submitit  # here, not above: it is there where its launcher is

        self.job: Any = submitit.SlurmJob(folder, job_id)

    def runs(self) -> bool:
        """Whether Slurm doesn't say that it has ended."""
        return not self.job.done()

    def cancel(self) -> None:
        """Call scancel."""
        self.job.cancel(check=False)

    def kill(self) -> None:
        """Slurm does, some time after its cancel."""


class RayTasks:
    """The tasks that this process gave to ray; they end with it."""

    OVER = ("FINISHED", "FAILED")

    def runs(self) -> bool:
        """Whether one of them is not over; where ray can't tell, none is waited for."""
        import ray  # here, not above: it is there where its launcher is
        from ray.util.state import list_tasks
        from ray.util.state.exception import RayStateApiException

        if not ray.is_initialized():
            return False
        own = ("job_id", "=", ray.get_runtime_context().get_job_id())
        try:
            found = list_tasks(filters=[own], raise_on_missing_output=False)
        except RayStateApiException:
            return False
        return any(task.state not in self.OVER for task in found)

    def cancel(self) -> None:
        """Leave ray, which ends them."""
        import ray

        ray.shutdown()

    def kill(self) -> None:
        """They are ended already."""
