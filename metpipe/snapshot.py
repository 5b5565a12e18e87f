"""run.json: the resolved config, its id, and what it ran on; repeats and audits a run."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from metpipe.config import Run
from metpipe.errors import ConfigError
from metpipe.report.outcome import SNAPSHOT
from metpipe.whole_file import write_whole

__all__ = ["SNAPSHOT", "add", "compared", "cores", "processor", "run_id", "write"]

PACKAGES = ("metpipe", "hydra-core", "omegaconf", "pydantic", "torch", "numpy", "numba", "triton")


def run_id(run: Run) -> str:
    """Twelve hex digits that name the resolved config, however it was spelled."""
    canonical = json.dumps(run.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def write(run: Run, out_dir: Path, overrides: Sequence[str], argv: Sequence[str]) -> dict[str, Any]:
    """Write run.json and return its content. The job adds digests and the device later (`add`)."""
    record: dict[str, Any] = {
        "schema": 1,
        "id": run_id(run),
        "config": run.model_dump(mode="json"),
        "overrides": list(overrides),
        "argv": list(argv),
        "cwd": str(Path.cwd()),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "machine": machine(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "git": _git(),
    }
    _keep(out_dir / SNAPSHOT, record)
    return record


def add(out_dir: Path, **facts: object) -> None:
    """Add facts that are known only later: device, checkpoint_digest, kernel_set_digest."""
    path = out_dir / SNAPSHOT
    _keep(path, json.loads(path.read_text()) | facts)


def compared(record: Mapping[str, Any], earlier_dir: Path) -> str:
    """One sentence: whether this run's id is the earlier one's, else the first key that differs.

    Raises:
        ConfigError: the earlier snapshot is there, and is broken.
    """
    path = earlier_dir / SNAPSHOT
    if not path.is_file():
        return f"rerun of {earlier_dir}: it left no {SNAPSHOT}, so its id is unknown"
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        then, earlier_id = dict(_leaves(earlier["config"])), earlier["id"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"rerun={earlier_dir}: {path} is broken ({type(error).__name__}: {error}); remove it, "
            "to run again without comparing ids"
        ) from None
    if earlier_id == record["id"]:
        return f"rerun of {earlier_dir}: same id {record['id']}"
    now = dict(_leaves(record["config"]))
    said = f"rerun of {earlier_dir}: id {record['id']} is not its {earlier_id}"
    for key in [*now, *then]:
        if then.get(key, ABSENT) != now.get(key, ABSENT):
            change = f"{key} is {_shown(now, key)}, was {_shown(then, key)}"
            return f"{said}; first difference: {change}"
    return f"{said}, though its config is the same: its {SNAPSHOT} was changed by hand"


ABSENT = object()


def _shown(leaves: Mapping[str, object], key: str) -> str:
    return json.dumps(leaves[key]) if key in leaves else "absent"


def machine() -> dict[str, Any]:
    """What this process runs on, without asking a GPU."""
    return {"system": platform.platform(), "processor": processor(), "cores": cores()}


def cores() -> int:
    """Cores that this process may use; all of the machine's where the system doesn't say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """The processor's own name where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git() -> str:
    """The commit, with a -dirty suffix when the tree differs; '' without a checkout or git."""
    try:
        got = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return ""
    return got.stdout.strip()


def _leaves(value: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _keep(path: Path, record: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(record, indent=1) + "\n")
