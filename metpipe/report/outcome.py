"""outcome.json: each job's exit status and, if it has none to report, its error in a line."""

from __future__ import annotations

import json
from pathlib import Path

from metpipe.errors import Exit

__all__ = ["OUTCOME", "read", "write"]

OUTCOME = "outcome.json"


def write(out_dir: Path, status: Exit, error: str | None = None) -> None:
    """Write the job's exit status beside its snapshot, whole."""
    record = {"schema": 1, "status": status.name, "exit": int(status), "error": error}
    scratch = out_dir / f"{OUTCOME}.partial"
    scratch.write_text(json.dumps(record, indent=1) + "\n")
    scratch.replace(out_dir / OUTCOME)


def read(out_dir: Path) -> tuple[Exit, str | None]:
    """A job's status and error; DIED for a job that left none, since it was killed."""
    path = out_dir / OUTCOME
    if not path.is_file():
        return Exit.DIED, "the job left no outcome; it was killed"
    record = json.loads(path.read_text())
    return Exit[record["status"]], record["error"]
