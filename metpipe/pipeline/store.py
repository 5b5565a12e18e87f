"""Where stage results are kept: one folder per key, whole or not there at all."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pydantic_core

from metpipe.errors import ConfigError

__all__ = ["DIGEST", "RESULT", "STAGE", "Store", "digest_of"]

RESULT = "result.json"
STAGE = "stage.json"
DIGEST = "result_sha256"
FOLDER = "stages"
HERE = re.sub(r"[^\w-]", "_", platform.node()) or "here"
"""This machine's name, as part of a file's: several machines may share a sweep's folder."""
SWEEP_MARK = "multirun.yaml"
"""The file that stands in a sweep's folder from its start."""


class Store:
    """A folder of results. Several processes may share it: a key is worked on by one at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def of_run(cls, out_dir: Path) -> Store:
        """The store of a run: in its own folder, or in the sweep's if it is a job of one."""
        sweep = out_dir.parent
        return cls((sweep if (sweep / SWEEP_MARK).is_file() else out_dir) / FOLDER)

    @classmethod
    def to_resume(cls, folder: Path) -> Store:
        """The store that an earlier run, sweep or job of a sweep left in `folder`.

        Raises:
            ConfigError: there is none.
        """
        for root in (folder / FOLDER, cls.of_run(folder).root):
            if root.is_dir():
                return cls(root)
        raise ConfigError(
            f"resume={folder}: it holds no stage results ({folder / FOLDER}); "
            "give the folder of a run or a sweep that got past its first stage"
        )

    def path(self, key: str) -> Path:
        """The folder of the key's result, there or not."""
        return self.root / key

    def has(self, key: str) -> bool:
        """Whether the key's result is there (then it is whole)."""
        return self.path(key).is_dir()

    def result(self, key: str) -> dict[str, Any]:
        """The record that the stage returned."""
        record: dict[str, Any] = json.loads((self.path(key) / RESULT).read_text())
        return record

    def seconds(self, key: str) -> float:
        """How long the stage took when it ran."""
        return float(json.loads((self.path(key) / STAGE).read_text())["seconds"])

    def as_written(self, key: str) -> bool:
        """Whether the record is, byte for byte, what the stage returned."""
        stage = json.loads((self.path(key) / STAGE).read_text())
        return bool(stage[DIGEST] == digest_of(self.path(key) / RESULT))

    @contextmanager
    def claimed(self, key: str) -> Iterator[None]:
        """Hold the key alone; whoever comes second waits, and then finds the first one's result.

        The lock dies with its process, so a killed run leaves nothing that must be cleared by hand.
        """
        locks = self.root / ".locks"
        try:
            locks.mkdir(parents=True, exist_ok=True)
            (locks / key).touch()
        except OSError as error:
            raise ConfigError(
                f"hydra.run.dir={self.root.parent}: its folder {self.root.name} cannot be written "
                f"({error.strerror}); choose another one"
            ) from error
        with (locks / key).open("w") as lock:
            with suppress(OSError):  # a disk without locks: both work, the first to finish wins
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._clear_leftovers(key)
            yield

    @contextmanager
    def scratch(self, key: str) -> Iterator[Path]:
        """A fresh folder for a claimed key; kept as its result unless an error passes through."""
        partial = self.root / f"{key}.{HERE}.{os.getpid()}.partial"
        partial.mkdir(parents=True)
        try:
            yield partial
            self._keep(partial, key)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def adopt(self, key: str, other: Store) -> None:
        """Take the key's result from another store: linked where the disk allows, else copied.

        Raises:
            ConfigError: the result there is broken.
        """
        try:
            other.result(key), other.seconds(key)
            whole = other.as_written(key)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _broken(other, key, f"{type(error).__name__}: {error}") from None
        if not whole:
            named = other.path(key) / RESULT
            raise _broken(other, key, f"{named} was changed after it was written")
        with self.scratch(key) as out:
            shutil.copytree(other.path(key), out, copy_function=_link, dirs_exist_ok=True)

    def _keep(self, partial: Path, key: str) -> None:
        try:
            partial.rename(self.path(key))
        except OSError:
            if not self.has(key):  # else another one's result is there already: it is as good
                raise

    def _clear_leftovers(self, key: str) -> None:
        """Remove what a run that was killed at this key left, on this machine.

        Another machine's may be at work: where a disk's locks don't reach it, both work.
        """
        for partial in self.root.glob(f"{key}.{HERE}.*.partial"):
            shutil.rmtree(partial, ignore_errors=True)


def digest_of(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _broken(store: Store, key: str, why: str) -> ConfigError:
    return ConfigError(
        f"resume={store.root.parent}: {store.path(key)} is broken ({why}); remove that folder, and "
        "its stage runs again"
    )


def write_json(path: Path, record: Mapping[str, object]) -> None:
    """Write a record as JSON; ValueError for what JSON has no form of."""
    path.write_bytes(pydantic_core.to_json(record, indent=1, inf_nan_mode="constants") + b"\n")


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
