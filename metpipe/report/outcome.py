"""outcome.json: each job's exit status and, if it has no report, its error in a line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from metpipe.errors import Exit
from metpipe.whole_file import write_whole

__all__ = ["OUTCOME", "SNAPSHOT", "Outcome", "read", "write"]

OUTCOME = "outcome.json"
SNAPSHOT = "run.json"
"""The file that a job leaves first: its config, id and machine."""


class Outcome(NamedTuple):
    """How a job ended, and what it was asked for."""

    status: Exit
    error: str | None
    overrides: tuple[str, ...]


def write(out_dir: Path, status: Exit, error: str | None, overrides: Sequence[str]) -> None:
    """Write the job's exit status beside its snapshot, whole."""
    record = {
        "schema": 1,
        "status": status.name,
        "exit": int(status),
        "error": error,
        "overrides": list(overrides),
    }
    write_whole(out_dir / OUTCOME, json.dumps(record, indent=1) + "\n")


def read(out_dir: Path) -> Outcome:
    """A job's outcome; DIED for a job that left none, since it was killed, or a broken one."""
    path = out_dir / OUTCOME
    try:
        if path.is_file():
            record = json.loads(path.read_text())
            return Outcome(Exit[record["status"]], record["error"], tuple(record["overrides"]))
        path = out_dir / SNAPSHOT
        overrides = json.loads(path.read_text())["overrides"] if path.is_file() else ()
    except (ValueError, KeyError, TypeError) as error:
        return Outcome(Exit.DIED, f"{path} is broken ({type(error).__name__}: {error})", ())
    return Outcome(Exit.DIED, "the job left no outcome: it was killed", tuple(overrides))
