"""What an evaluation says: terms with their status and source, and whether the serve fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "SEVERITY",
    "Answer",
    "CopyBytes",
    "Counts",
    "Holding",
    "MemoryReport",
    "NodeBytes",
    "PoolRoom",
    "RankBytes",
    "RunBytes",
    "StateBytes",
    "Status",
    "Term",
    "WorkspaceBytes",
    "answer_of",
]

Status = Literal["exact", "calibrated", "uncalibrated"]
"""exact: asserted against real allocations; calibrated: on named boots; uncalibrated: neither, a
range where both ends are known, else a formula that may be off by what nobody knows."""

Answer = Literal["fits", "does not fit", "depends"]

SEVERITY: tuple[Answer, ...] = ("fits", "depends", "does not fit")
"""From the best."""

Holding = Literal["blocks", "live", "steps", "checkpoint", "cache", "host"]
"""What of a state is held: tokens in blocks, slots that live, what a verify may go back to (after
each row, and before the first), a cache beside it, or one in the host's memory."""


def answer_of(headroom_low: int, headroom_high: int) -> Answer:
    """What is left at worst and at best decides."""
    if headroom_low >= 0:
        return "fits"
    return "depends" if headroom_high >= 0 else "does not fit"


@dataclass(frozen=True, slots=True)
class Term:
    """One item of the bill, in bytes: `low` and `high` differ only when uncalibrated."""

    id: str
    low: int
    high: int
    status: Status
    source: str


@dataclass(frozen=True, slots=True)
class CopyBytes:
    """An allocation that a loader makes from a weight beside it; a leaked one is never read."""

    rule: str
    bytes: int
    leaked: bool


@dataclass(frozen=True, slots=True)
class NodeBytes:
    """A node's stored tensors, 0 where an earlier node has the same binding; and their copies."""

    node: str
    op: str
    layer: int | None
    stored: int
    derived: tuple[CopyBytes, ...] = ()


@dataclass(frozen=True, slots=True)
class StateBytes:
    """One kind of state over all layers that have it: `bytes` = layers x units x unit_bytes.

    A unit is a token of the paged pool, a slot, or what a cache counts by; `states` are the ids,
    one a layer.
    """

    local: str
    kind: str
    holding: Holding
    lifetime: str
    dtype: str
    section: str
    states: tuple[str, ...]
    units: int
    unit_bytes: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RunBytes:
    """One program's activations: the arena it needs and the plain sum of its edges.

    Ops that no kernel covers make both upper bounds: as if each op kept its results in memory.
    """

    label: str
    mode: str
    rows: int
    arena: int
    materialized: int
    uncovered: tuple[str, ...] = ()
    """ops that no kernel covers"""


@dataclass(frozen=True, slots=True)
class WorkspaceBytes:
    """A kernel family's scratch buffer at the run that needs most of it; all launches share it.

    `in_arena` says that an engine with a legacy arena has it in there.
    """

    family: str
    name: str
    bytes: int
    run: str
    nodes: int
    in_arena: bool = False


@dataclass(frozen=True, slots=True)
class Counts:
    """What an accounting counts: every term but the driver's, and the rows behind them.

    `kv_blocks` and `pool_bytes` are the pool of the target's keys and values, 0 without one. `host`
    is memory of the host, which no term holds.
    """

    terms: tuple[Term, ...]
    nodes: tuple[NodeBytes, ...]
    states: tuple[StateBytes, ...]
    runs: tuple[RunBytes, ...]
    workspaces: tuple[WorkspaceBytes, ...]
    kv_blocks: int
    pool_bytes: int
    notes: tuple[str, ...]
    host: int = 0


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """The KV pool that the budget leaves beside everything else, at both ends of the range."""

    block_size: int
    block_bytes: int
    blocks_needed: int
    blocks_low: int
    blocks_high: int


@dataclass(frozen=True, slots=True)
class RankBytes:
    """The ranks `first`..`last`, which hold the same layers and as much as each other."""

    first: int
    last: int
    first_layer: int
    last_layer: int
    terms: tuple[Term, ...]
    total_low: int
    total_high: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The whole answer at one point, in bytes. Headroom is signed: budget less total.

    With several ranks it is that of the fullest, and `ranks` has a row for each stage.
    """

    accounting: str
    device: str
    kernel_set: str
    device_bytes: int
    budget: int
    counts: Counts
    terms: tuple[Term, ...]
    total_low: int
    total_high: int
    answer: Answer
    pool: PoolRoom | None
    notes: tuple[str, ...]
    ranks: tuple[RankBytes, ...] = ()
    fullest: int = 0
    """the stage whose ranks these are"""

    @property
    def headroom_low(self) -> int:
        """What is certainly left."""
        return self.budget - self.total_high

    @property
    def headroom_high(self) -> int:
        """What is left at best."""
        return self.budget - self.total_low

    def term(self, term_id: str) -> Term:
        """The term of this id."""
        return next(term for term in self.terms if term.id == term_id)
