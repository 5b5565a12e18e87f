"""report.json: what a run found, as data. Sizes in bytes, times as their names say; NaN is null."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from metpipe.report.boot_section import BootSection
from metpipe.report.diff_section import DiffSection
from metpipe.report.grid_section import GridSection
from metpipe.report.memory_section import LedgerSection, MemorySection
from metpipe.report.oracle_section import OracleSection
from metpipe.report.record import Record
from metpipe.report.rule_section import RuleSection
from metpipe.whole_file import write_whole

__all__ = [
    "REPORT",
    "SCHEMA",
    "Checkpoint",
    "Executed",
    "Planned",
    "Provenance",
    "Report",
    "StageRow",
]

REPORT = "report.json"
SCHEMA = 1


class Executed(Record):
    """The machine that ran the forwards."""

    device: Literal["cpu", "cuda"]
    name: str
    kernel_set: str
    cores: int | None = None
    memory_bytes: int | None = None
    unproven: bool = Field(
        default=False, description="the kernel set is that of another, nearest class of GPUs"
    )


class Planned(Record):
    """The device that memory was planned for."""

    device: str
    name: str
    memory_bytes: int
    kernel_set: str
    plans_with: str | None = Field(
        default=None, description="the set whose plans stand in for a class without its own"
    )


class StageRow(Record):
    """How a stage was settled. The seconds of a cached one are from when it ran."""

    name: str
    how: Literal["ran", "cached", "failed", "skipped"]
    seconds: float
    cached: bool
    error: str | None = None


class Checkpoint(Record):
    """Which weights."""

    name: str
    source: str
    reader: str
    digest: str | None


class Provenance(Record):
    """Everything that it takes to repeat the run."""

    id: str
    overrides: tuple[str, ...]
    argv: tuple[str, ...]
    python: str
    versions: dict[str, str]
    git: str
    checkpoint: Checkpoint | None = None
    kernel_sets: dict[str, str] = Field(default={}, description="set -> digest")
    rerun: str | None = Field(default=None, description="how the id compares with the run repeated")
    resumed: str | None = None


class Report(Record):
    """One run. The verdict and its reasons come first; a part that did not run is null."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_number: int = Field(default=SCHEMA, alias="schema")
    verdict: Literal["PASS", "FAIL", "INCONCLUSIVE", "DIED", "USAGE", "INTERRUPTED"]
    reasons: tuple[str, ...]
    model: str
    executed_on: Executed | None
    planned_for: Planned | None
    notes: tuple[str, ...] = Field(default=(), description="what a reader must know of the run")
    diff: DiffSection | None = None
    oracle: OracleSection | None = None
    memory: MemorySection | None = None
    ledger: LedgerSection | None = None
    boot: BootSection | None = None
    rule: RuleSection | None = None
    grid: GridSection | None = None
    stages: tuple[StageRow, ...] = ()
    provenance: Provenance

    def write(self, out_dir: Path) -> Path:
        """Write report.json whole, and return where it is."""
        path = out_dir / REPORT
        write_whole(path, self.model_dump_json(by_alias=True, indent=1) + "\n")
        return path

    @classmethod
    def read(cls, out_dir: Path) -> Report:
        """Read a run's report.json back."""
        return cls.model_validate_json((out_dir / REPORT).read_text())
