"""A model planned for memory: what depends on circuit and kernel set alone, made once and shared.

Points of one model hold the same `Planned`, so a thousand of them cost a thousand sums, not fusions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit import (
    Circuit,
    Plan,
    Select,
    Situation,
    fuse,
    node_weight_shapes,
)
from metpipe.memory.formulas import weight_bytes
from metpipe.memory.kernel_set import KernelSet
from metpipe.memory.plan_sizes import PlanSizes
from metpipe.memory.report import NodeBytes

__all__ = ["Planned", "RopeTable", "StateGroup"]


@dataclass(frozen=True, slots=True)
class StateGroup:
    """States that differ only in their layer; `elements` is per token (paged) or per slot."""

    local: str
    kind: str
    lifetime: str
    format: str
    elements: int
    section: str
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RopeTable:
    """One distinct set of rope parameters, as its nodes carry them."""

    parameters: str
    rotary_dim: int


@dataclass(slots=True, eq=False)
class Planned:
    """Circuit and kernel set, with plans per bucket of rows and arenas per row count kept.

    `select` says which rules the planned forward may use; `settings`, `capabilities` and `levers`
    are the rest of the fuser's situation.
    """

    circuit: Circuit
    kernel_set: KernelSet
    select: Select
    settings: Mapping[str, str] = field(default_factory=dict)
    capabilities: frozenset[str] = frozenset()
    levers: frozenset[str] = frozenset()
    nodes: tuple[NodeBytes, ...] = field(init=False)
    states: tuple[StateGroup, ...] = field(init=False)
    rope_tables: tuple[RopeTable, ...] = field(init=False)
    _sizes: dict[tuple[str, int], PlanSizes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = _stored(self.circuit)
        self.states = _grouped(self.circuit)
        self.rope_tables = _rope_tables(self.circuit)

    @property
    def weights(self) -> int:
        """Bytes of every tensor that a node binds, each binding once."""
        return sum(node.stored for node in self.nodes)

    def sizes(self, mode: str, rows: int) -> PlanSizes:
        """The plan for a mode at a row count, with the sizes that follow from it."""
        bucket = self._bucket(mode, rows)
        if (mode, bucket) not in self._sizes:
            plan = self.plan(mode, bucket)
            self._sizes[mode, bucket] = PlanSizes(plan, self.kernel_set.families)
        return self._sizes[mode, bucket]

    def plan(self, mode: str, rows: int) -> Plan:
        """Fuse afresh."""
        return fuse(
            self.circuit,
            self.kernel_set.rules,
            Situation(
                mode=mode,
                rows=rows,
                kernels=self.kernel_set.kernels,
                capabilities=self.capabilities,
                settings=self.settings,
                levers=self.levers,
                select=self.select,
            ),
        )
