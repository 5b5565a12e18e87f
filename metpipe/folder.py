"""The folder of a run or a sweep: one process at a time has it, and nothing earlier passes for its.

A run's own folder may have held an earlier run: its records go before the new one starts, the
results of its stages stay. A sweep's folder must hold no job of an earlier sweep: which of them are
its own, nobody could tell.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from metpipe.errors import ConfigError
from metpipe.report.grid_picture import PICTURE
from metpipe.report.outcome import OUTCOME, SNAPSHOT
from metpipe.report.schema import REPORT
from metpipe.report.sweep_record import SWEEP

__all__ = ["LOCK", "LOG", "MULTIRUN", "TRACEBACK", "Claim", "forget"]

LOCK = ".metpipe.lock"
LOG = "report.txt"
"""A job of a sweep writes its whole report there, and a line on the terminal."""
TRACEBACK = "traceback.txt"
RECORDS = (SNAPSHOT, REPORT, OUTCOME, LOG, TRACEBACK, PICTURE)
"""What a run leaves of itself; a later one in its folder would seem to have left it."""
MULTIRUN = "multirun.yaml"
"""Hydra's own record of a sweep, there from its start."""
STARTED = ".hydra/overrides.yaml"
"""What Hydra leaves in the folder of each job that started."""


class Claim:
    """A folder that this process works in, until `release` or its death."""

    def __init__(self, folder: Path, key: str) -> None:
        """Make the folder where it is not there, and hold it alone.

        `key`: what names the folder on the command line.

        Raises:
            ConfigError: another process holds it. OSError: it cannot be made or written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.lock: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(
                f"{key}={folder}: another run is at work in it; wait for its end, or give another "
                "folder"
            ) from None
        except OSError:
            """A disk without locks."""

    @classmethod
    def of_run(cls, folder: Path, rerun: Path | None) -> Claim:
        """The folder of a single run, without what an earlier run left of itself.

        `rerun`: the run that is repeated, if it is one that is.

        Raises:
            ConfigError: it is the repeated run's own, or an earlier file cannot be removed.
        """
        key = "hydra.run.dir"
        if rerun is not None and rerun.resolve() == folder.resolve():
            raise ConfigError(
                f"rerun={rerun}: is the folder that this run would write ({key}={folder}), and the "
                "two could not be compared; give another folder"
            )
        claim = cls(folder, key)
        with claim.kept_if_right():
            forget(folder, key)
        return claim

    @classmethod
    def of_sweep(cls, folder: Path) -> Claim:
        """The folder of a sweep.

        Raises:
            ConfigError: jobs of an earlier sweep, or of any run, are in it.
        """
        key = "hydra.sweep.dir"
        claim = cls(folder, key)
        with claim.kept_if_right():
            _refuse_a_used(folder, key)
        return claim

    @contextmanager
    def kept_if_right(self) -> Iterator[None]:
        """Release the folder if what is looked at is wrong."""
        try:
            yield
        except Exception:
            self.release()
            raise

    def release(self) -> None:
        """Let others have it."""
        if self.lock is not None:
            os.close(self.lock)
        self.lock = None


def _refuse_a_used(folder: Path, key: str) -> None:
    earlier = sorted(path.parent.parent.name for path in folder.glob(f"*/{STARTED}"))
    if earlier:
        raise ConfigError(
            f"{key}={folder}: holds a job of an earlier sweep ({earlier[0]}/), which would pass "
            f"for one of this sweep; give another folder (with resume={folder} finished stages "
            "are taken from there)"
        )
    for name in (SWEEP, MULTIRUN):
        if (folder / name).is_dir():
            raise _in_the_way(folder, key, name, "is a folder")


def forget(folder: Path, key: str) -> None:
    """Remove what an earlier run left of itself; its stages' results stay.

    Raises:
        ConfigError: a file cannot be removed.
    """
    for name in RECORDS:
        try:
            with suppress(FileNotFoundError):
                (folder / name).unlink()
        except OSError as error:
            why = "is a folder" if (folder / name).is_dir() else f"stays ({error.strerror})"
            raise _in_the_way(folder, key, name, why) from None


def _in_the_way(folder: Path, key: str, name: str, why: str) -> ConfigError:
    return ConfigError(
        f"{key}={folder}: its {name} {why}, and a file of that name is written there; remove it, "
        "or give another folder"
    )
