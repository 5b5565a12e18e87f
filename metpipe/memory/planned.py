"""A model planned for memory: what depends on circuit and kernel set alone, made once and shared.

Points of one model hold the same `Planned`: a thousand of them cost a thousand sums, not fusions.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

from metpipe.circuit import (
    Circuit,
    Plan,
    Select,
    Situation,
    StateDecl,
    Uncovered,
    fuse,
    node_weight_shapes,
    row_buckets,
)
from metpipe.memory.kernel_set import KernelSet
from metpipe.memory.plan_sizes import PlanSizes
from metpipe.memory.report import NodeBytes
from metpipe.memory.stored import quantised_formats, stored_bytes
from metpipe.memory.unplanned import unplanned

__all__ = ["Planned", "RopeTable", "StateGroup"]

ATTENTION = frozenset({"paged_attention", "mla_attention", "compressed_attention"})
WIDEST = 1 << 31
"""More rows than any step has: bounds the last bucket."""


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
    verify: str | None = None


@dataclass(frozen=True, slots=True)
class RopeTable:
    """One distinct set of rope parameters, as its nodes carry them."""

    parameters: str
    rotary_dim: int


@dataclass(slots=True, eq=False)
class Planned:
    """Circuit and kernel set, with plans per bucket of rows and arenas per row count kept.

    `select` and `levers` say which rules the planned forward may use.
    """

    circuit: Circuit
    kernel_set: KernelSet
    select: Select
    levers: frozenset[str] = frozenset()
    nodes: tuple[NodeBytes, ...] = field(init=False)
    weights: int = field(init=False)
    """bytes of every tensor that a node binds, in the format of its weight, each binding once"""
    quantised_formats: tuple[str, ...] = field(init=False)
    """formats other than bf16 that some matrix is declared in"""
    states: tuple[StateGroup, ...] = field(init=False)
    rope_tables: tuple[RopeTable, ...] = field(init=False)
    attention_width: int = field(init=False)
    """what the widest attention writes for a row, 0 without one"""
    _buckets: dict[str, list[int]] = field(init=False, default_factory=dict)
    _sizes: dict[tuple[str, int], PlanSizes] = field(init=False, default_factory=dict)
    _bounds: dict[str, PlanSizes] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = _stored(self.circuit)
        self.weights = sum(node.stored for node in self.nodes)
        self.quantised_formats = quantised_formats(self.circuit.nodes)
        self.states = _grouped(self.circuit)
        self.rope_tables = _rope_tables(self.circuit)
        self.attention_width = _attention_width(self.circuit)

    def sizes(self, mode: str, rows: int) -> PlanSizes:
        """The plan for a mode at a row count, with the sizes that follow from it.

        Where the rules leave ops uncovered, these are the sizes of a plan of one group per op.
        """
        key = (mode, self._bucket(mode, rows))
        if key not in self._sizes:
            self._sizes[key] = self._planned(mode, rows)
        return self._sizes[key]

    def bound(self, mode: str, rows: int) -> int:
        """The arena of a run in which each op is a kernel of its own and keeps its results."""
        if mode not in self._bounds:
            self._bounds[mode] = PlanSizes(unplanned(self.circuit, mode, rows), ())
        return self._bounds[mode].arena(rows)[0]

    def _planned(self, mode: str, rows: int) -> PlanSizes:
        families = self.kernel_set.families
        try:
            return PlanSizes(self.plan(mode, rows), families)
        except Uncovered as problem:
            plan = unplanned(self.circuit, mode, rows)
            return PlanSizes(plan, families, uncovered=problem.ops)

    def plan(self, mode: str, rows: int) -> Plan:
        """Fuse afresh.

        Raises:
            Uncovered: the rules do not cover the circuit at these rows.
        """
        situation = Situation(
            mode=mode,
            rows=rows,
            kernels=self.kernel_set.kernels,
            capabilities=self.kernel_set.capabilities,
            settings=self.kernel_set.settings,
            levers=self.levers,
            select=self.select,
        )
        return fuse(self.circuit, self.kernel_set.rules, situation)

    def _bucket(self, mode: str, rows: int) -> int:
        """The lowest row count of the bucket that holds `rows`."""
        if mode not in self._buckets:
            buckets = row_buckets(self.kernel_set.rules, mode, WIDEST)
            self._buckets[mode] = [bucket.low for bucket in buckets]
        lows = self._buckets[mode]
        return lows[bisect_right(lows, rows) - 1]


def _stored(circuit: Circuit) -> tuple[NodeBytes, ...]:
    """What each node stores; tensors that an earlier node reads as well store nothing again."""
    seen: set[tuple[str, ...]] = set()
    stored = []
    for node in circuit.nodes:
        tensors = node_weight_shapes(circuit, node)
        names = tuple(name for name, _ in tensors)
        size = 0 if names in seen else stored_bytes(circuit, node)
        seen.add(names)
        stored.append(NodeBytes(node.id, node.op, node.layer, size))
    return tuple(stored)


def _grouped(circuit: Circuit) -> tuple[StateGroup, ...]:
    groups: dict[tuple[object, ...], list[StateDecl]] = {}
    for state in circuit.states.values():
        key = (state.local, state.kind, state.lifetime, state.format, state.elements)
        groups.setdefault((*key, state.section, state.verify), []).append(state)
    return tuple(
        StateGroup(
            local=members[0].local,
            kind=members[0].kind,
            lifetime=members[0].lifetime,
            format=members[0].format,
            elements=members[0].elements,
            section=members[0].section,
            states=tuple(state.id for state in members),
            verify=members[0].verify,
        )
        for members in groups.values()
    )


def _rope_tables(circuit: Circuit) -> tuple[RopeTable, ...]:
    tables = (
        RopeTable(node.params["rope"], int(node.params["rotary_dim"]))
        for node in circuit.nodes
        if node.op == "rope"
    )
    return tuple(dict.fromkeys(tables))


def _attention_width(circuit: Circuit) -> int:
    widths = (circuit.edges[node.outputs[0]].dim for node in circuit.nodes if node.op in ATTENTION)
    return max(widths, default=0)
