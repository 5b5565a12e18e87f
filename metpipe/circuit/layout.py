"""Places a plan's edges in one arena by liveness: 256-byte aligned, first fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.circuit.formats import tensor_bytes
from metpipe.circuit.plan import Plan, edge_rows

__all__ = ["ALIGNMENT", "Layout", "Place", "layout", "live_ranges"]

ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Place:
    """Where an edge lies in the arena."""

    offset: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """`total`: the highest end. `materialized`: the plain sum of sizes."""

    places: Mapping[str, Place]
    total: int
    materialized: int


def layout(plan: Plan, rows: int) -> Layout:
    """Place every materialised edge for a run over `rows` rows.

    By start of life, then larger first, then in edge order, each edge takes the lowest aligned
    offset that is free for its whole life.
    """
    items = []
    for order, (edge_id, (start, end)) in enumerate(live_ranges(plan).items()):
        edge = plan.circuit.edges[edge_id]
        size = tensor_bytes(plan.stored[edge_id], edge_rows(plan, edge, rows), edge.dim)
        items.append((start, -size, order, end, edge_id))
    items.sort()
    places: dict[str, Place] = {}
    busy: list[tuple[int, int, int]] = []  # offset, end of bytes, last group; by offset
    total = 0
    for start, negative, _, end, edge_id in items:
        busy = [held for held in busy if held[2] >= start]
        offset = _first_fit(busy, -negative)
        places[edge_id] = Place(offset, -negative)
        busy.append((offset, offset - negative, end))
        busy.sort()
        total = max(total, offset - negative)
    return Layout(places, total, sum(place.bytes for place in places.values()))


def live_ranges(plan: Plan) -> dict[str, tuple[int, int]]:
    """For each materialised edge, in edge order, the first and the last group it must survive.

    Outputs, and edges that no node of the plan reads, live to the last group.
    """
    owner = {node: group.index for group in plan.groups for node in group.nodes}
    last = len(plan.groups) - 1
    ranges = {}
    for edge_id in plan.stored:
        if edge_id not in plan.materialized:
            continue
        edge = plan.circuit.edges[edge_id]
        start = owner.get(edge.producer, 0) if edge.producer is not None else 0
        read = [owner[reader] for reader in edge.consumers if reader in owner]
        outlives = edge.is_output or len(read) < len(edge.consumers) or not read
        ranges[edge_id] = (start, last if outlives else max(read))
    return ranges


def _first_fit(busy: list[tuple[int, int, int]], size: int) -> int:
    offset = 0
    for start, end, _ in busy:
        if start - offset >= size:
            return offset
        offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
    return offset
