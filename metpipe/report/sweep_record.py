"""sweep.json as data: a row per job, with all that its tables and plots show. Sizes in bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from metpipe.memory.report import Answer, Status
from metpipe.report.memory_section import Workload
from metpipe.report.record import Record
from metpipe.whole_file import write_whole

__all__ = ["SCHEMA", "SWEEP", "DiffRow", "JobRow", "Limit", "MemoryRow", "SweepRecord", "TermRow"]

SWEEP = "sweep.json"
SCHEMA = 1


class DiffRow(Record):
    """Judged comparisons of one job, over all of its prompts and cases."""

    mode: str
    compared_steps: int
    mismatched_steps: int
    prefills_differ: int


class TermRow(Record):
    """One item of a job's bill."""

    id: str
    low: int
    high: int
    status: Status


class Limit(Record):
    """The most that fits whatever happens, and that may fit, of what was looked at."""

    low: int
    high: int
    surely: int | None
    possibly: int | None


class MemoryRow(Record):
    """One job's memory plan."""

    accounting: str
    device: str
    workload: Workload
    ranks: int = Field(description="how many; terms and totals are of the fullest one")
    terms: tuple[TermRow, ...]
    low: int
    high: int
    budget: int
    host: int
    leaked: int
    planned: int
    headroom_low: int
    headroom_high: int
    answer: Answer
    limits: dict[str, Limit] = Field(description="max_concurrency and max_isl, where asked")
    expert_tables: str | None = Field(
        description="what was decided on the tables of the experts; null where there are none"
    )


class JobRow(Record):
    """What became of one job; what its report says is null where it left none."""

    job: str
    overrides: tuple[str, ...]
    status: Literal["PASS", "FAIL", "INCONCLUSIVE", "DIED", "USAGE", "INTERRUPTED"]
    exit: int
    error: str | None
    id: str | None = None
    model: str | None = None
    reasons: tuple[str, ...] = ()
    executed_on: str | None = None
    planned_for: str | None = None
    diff: DiffRow | None = None
    memory: MemoryRow | None = None


class SweepRecord(Record):
    """A whole sweep."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_number: int = Field(default=SCHEMA, alias="schema")
    jobs: tuple[JobRow, ...]

    def write(self, sweep_dir: Path) -> Path:
        """Write sweep.json whole, and return where it is."""
        path = sweep_dir / SWEEP
        write_whole(path, self.model_dump_json(by_alias=True, indent=1) + "\n")
        return path

    @classmethod
    def read(cls, sweep_dir: Path) -> SweepRecord:
        """Read a sweep's sweep.json back."""
        return cls.model_validate_json((sweep_dir / SWEEP).read_text(encoding="utf-8"))
