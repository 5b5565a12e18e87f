"""Who owns which bytes: the report's terms spread over the circuit's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit import layout
from metpipe.memory.point import Point
from metpipe.memory.report import MemoryReport, RunBytes

__all__ = ["NodeShare", "node_shares"]

OWNS = ("update", "write")
"""Accesses that make a node the owner of a state; readers own nothing."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's bytes.

    `stored` and `state` add up over the nodes to the terms weights, and kv plus states.
    `activations` are the edges that the node writes in the widest run; the arena holds them in
    turns, so their sum is the run's materialized, not the arena.
    """

    node: str
    op: str
    layer: int | None
    stored: int
    activations: int
    state: int


def node_shares(point: Point, report: MemoryReport) -> tuple[NodeShare, ...]:
    """A row per node of the circuit, in execution order; `report` is the point's evaluation."""
    activations = _activations(point, widest_run(report))
    states = _states(point, report)
    return tuple(
        NodeShare(row.node, row.op, row.layer, row.stored, activations[row.node], states[row.node])
        for row in report.counts.nodes
    )


def widest_run(report: MemoryReport) -> RunBytes:
    """The run that sets the arena; the first of equals."""
    return max(report.counts.runs, key=lambda run: run.arena)


def _activations(point: Point, run: RunBytes) -> Mapping[str, int]:
    plan, shares = point.planned.sizes(run.mode, run.rows).plan, Counter[str]()
    for edge_id, place in layout(plan, run.rows).places.items():
        producer = plan.circuit.edges[edge_id].producer
        if producer is not None:
            shares[plan.circuit.nodes[producer].id] += place.bytes
    return shares


def _states(point: Point, report: MemoryReport) -> Mapping[str, int]:
    """Each state's bytes at the first node that writes it."""
    unowned = {
        state: group.bytes // len(group.states)
        for group in report.counts.states
        for state in group.states
    }
    shares = Counter[str]()
    for node in point.planned.circuit.nodes:
        for state, access in node.state.items():
            if access in OWNS:
                shares[node.id] += unowned.pop(state, 0)
    return shares
