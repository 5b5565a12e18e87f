"""sweep.json and its table: one row per job."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from metpipe.errors import Exit
from metpipe.report import outcome

__all__ = ["write"]


def write(sweep_dir: Path, console: Console) -> list[Exit]:
    """Write sweep.json, print its table, and return the jobs' statuses."""
    folders = sorted(
        (path.parent.parent for path in sweep_dir.glob("*/.hydra/overrides.yaml")), key=_order
    )
    rows = []
    table = Table("job", "status")
    for folder in folders:
        status, error = outcome.read(folder)
        rows.append(
            {"job": folder.name, "status": status.name, "exit": int(status), "error": error}
        )
        table.add_row(folder.name, status.name)
    (sweep_dir / "sweep.json").write_text(json.dumps({"schema": 1, "jobs": rows}, indent=1) + "\n")
    console.print(table)
    return [Exit[str(row["status"])] for row in rows]


def _order(folder: Path) -> tuple[int, str]:
    return (int(folder.name) if folder.name.isdigit() else -1, folder.name)
