"""Who owns which bytes: the report's terms spread over the circuit's nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit import layout
from metpipe.memory.point import Point
from metpipe.memory.report import CopyBytes, MemoryReport, RunBytes

__all__ = ["NodeShare", "node_shares"]

OWNS = ("update", "write")
"""Accesses that make a node the owner of a state; readers own nothing."""


@dataclass(frozen=True, slots=True)
class NodeShare:
    """One node's bytes.

    `stored`, `derived` and `state` add up over the nodes to the weights, the copies, and what the
    states hold. `activations` are the edges that the node writes in the widest run; the arena holds
    them in turns, so their sum is the run's materialized, not the arena. `workspace` is the largest
    buffer that it launches with, which others share.
    """

    node: str
    op: str
    layer: int | None
    stored: int
    derived: tuple[CopyBytes, ...]
    activations: int
    workspace: int
    state: int


def node_shares(point: Point, report: MemoryReport) -> tuple[NodeShare, ...]:
    """A row per node of the circuit, in execution order; `report` is the point's evaluation."""
    activations = _activations(point, widest_run(report))
    states, spaces = _states(point, report), _workspaces(point, report)
    return tuple(
        NodeShare(
            node=row.node,
            op=row.op,
            layer=row.layer,
            stored=row.stored,
            derived=row.derived,
            activations=activations[row.node],
            workspace=spaces[row.node],
            state=states[row.node],
        )
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
    """Each state's bytes, in all its holdings, at the first node that writes it."""
    unowned = Counter[str]()
    for group in report.counts.states:
        for state in group.states:
            unowned[state] += group.bytes // len(group.states)
    shares = Counter[str]()
    for node in point.planned.circuit.nodes:
        for state, access in node.state.items():
            if access in OWNS:
                shares[node.id] += unowned.pop(state, 0)
    return shares


def _workspaces(point: Point, report: MemoryReport) -> Mapping[str, int]:
    """The largest buffer of the families that run each node, at that buffer's own run."""
    shares = Counter[str]()
    families = {family.name: family for family in point.planned.kernel_set.families}
    runs = {run.label: run for run in report.counts.runs}
    for space in report.counts.workspaces:
        run = runs[space.run]
        plan = point.planned.sizes(run.mode, run.rows).plan
        for group in plan.groups:
            if group.rule.kernel_names & families[space.family].kernels:
                for index in group.nodes:
                    name = plan.circuit.nodes[index].id
                    shares[name] = max(shares[name], space.bytes)
    return shares
