"""The memory plan's and the ledger's parts of the report. Sizes in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

from pydantic import ConfigDict, Field

from metpipe.memory.report import Answer, Status
from metpipe.report.record import Record

__all__ = [
    "Fix",
    "LedgerLine",
    "LedgerSection",
    "MemorySection",
    "Query",
    "Rank",
    "Term",
    "Workload",
    "ledger_section",
    "memory_section",
]


class Header(Record):
    """Whose engine was counted, for which device."""

    accounting: str
    device: str
    kernel_set: str
    device_bytes: int
    notes: tuple[str, ...]
    facts: dict[str, str] = Field(description="what the accounting says above its numbers")


class Term(Record):
    """One item of the bill; `low` and `high` differ only where nothing calibrated it."""

    id: str
    low: int
    high: int
    status: Status
    source: str

    @property
    def is_open(self) -> bool:
        """Whether something is charged that nobody proved, or nothing since nobody counted it."""
        return self.status == "uncalibrated" and (self.high > 0 or self.is_uncounted)

    @property
    def is_uncounted(self) -> bool:
        """Whether its source says that nobody counted it."""
        return self.source.startswith("not counted: ")


class Copy(Record):
    """An allocation that a loader makes from a weight beside it."""

    rule: str
    bytes: int
    leaked: bool


class Node(Record):
    """What a node stores, copies, writes, launches with and keeps."""

    node: str
    op: str
    layer: int | None
    stored: int
    derived: tuple[Copy, ...]
    activations: int
    workspace: int
    state: int


class State(Record):
    """One kind of state over its layers."""

    local: str
    kind: str
    holding: str
    lifetime: str
    dtype: str
    section: str
    states: tuple[str, ...]
    units: int
    unit_bytes: int
    bytes: int


class ArenaRun(Record):
    """One program's activations."""

    label: str
    mode: str
    rows: int
    arena: int
    materialized: int
    uncovered: tuple[str, ...] = ()


class Workspace(Record):
    """A kernel family's scratch buffer."""

    family: str
    name: str
    bytes: int
    run: str
    nodes: int
    in_arena: bool


class Totals(Record):
    """The sum, the budget, and what is left of it."""

    low: int
    high: int
    budget: int
    host: int = Field(description="memory of the host, outside every term")
    leaked: int = Field(description="copies that nothing reads, part of their term")
    planned: int = Field(description="the largest planned arena, charged or not")
    headroom_low: int
    headroom_high: int
    answer: Answer


class Pool(Record):
    """The KV pool that the budget leaves."""

    block_size: int
    block_bytes: int
    blocks_needed: int
    blocks_low: int
    blocks_high: int
    tokens_low: int
    tokens_high: int


Value: TypeAlias = int | float | str
"""Of a count, a share, or a device's id."""


class Query(Record):
    """An inverse query: the value that fits whatever happens, and the one that may fit."""

    sense: Literal["most", "least"] = Field(
        description="whether the largest is asked, or the least"
    )
    low: Value | None
    high: Value | None
    surely: Value | None
    possibly: Value | None
    exceptions: tuple[Value, ...] = Field(
        description="values near an answer that fit beyond it, or do not before it"
    )
    why: str = Field(description="why it was not asked; empty where it was")
    beside: str = Field(
        default="", description="an override that every value asked about has, and the run has not"
    )
    left_out: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="why -> devices on which no plan can be made"
    )


class Fix(Record):
    """One override that would make it fit, or depend, the rest as it is."""

    override: str
    answer: Answer
    headroom_low: int
    headroom_high: int


class Rank(Record):
    """Ranks that hold the same layers, and as much as each other."""

    first: int
    last: int
    first_layer: int
    last_layer: int
    terms: dict[str, tuple[int, int]] = Field(description="term -> low and high")
    total_low: int
    total_high: int
    headroom_low: int
    headroom_high: int
    answer: Answer


class LedgerLine(Record):
    """One tag: what was planned and what was measured; a tag without status was not planned."""

    tag: str
    low: int
    high: int
    measured: int
    status: Status | None
    difference: int
    agrees: bool


class Workload(Record):
    """What memory was judged at, in tokens and sequences."""

    isl: int
    osl: int
    concurrency: int


class MemorySection(Record):
    """Does it fit?"""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_number: int = Field(alias="schema")
    header: Header
    workload: Workload
    terms: tuple[Term, ...]
    totals: Totals
    inverse: dict[str, Query]
    fixes: tuple[Fix, ...] = Field(description="single changes that would make it fit")
    pool: Pool | None
    ranks: tuple[Rank, ...] = Field(description="a row a stage; empty for one rank")
    fullest: int = Field(description="the stage that the terms and totals are of")
    states: tuple[State, ...]
    runs: tuple[ArenaRun, ...]
    workspaces: tuple[Workspace, ...]
    nodes: tuple[Node, ...]


class LedgerSection(Record):
    """The plan against what a boot allocated."""

    source: str
    rows: tuple[LedgerLine, ...]

    @property
    def agrees(self) -> bool:
        """Whether every tag is as planned, and there is one."""
        return bool(self.rows) and all(row.agrees for row in self.rows)


def memory_section(record: Mapping[str, object], workload: Mapping[str, int]) -> MemorySection:
    """The section of a memory record; its ledger rows have a section of their own."""
    own = {key: value for key, value in record.items() if key != "ledger"}
    return MemorySection.model_validate(own | {"workload": workload})


def ledger_section(source: str, rows: Iterable[Mapping[str, object]]) -> LedgerSection:
    """The section of a memory record's ledger rows; `source` says whose boot was measured."""
    return LedgerSection.model_validate({"source": source, "rows": list(rows)})
