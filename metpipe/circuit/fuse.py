"""Makes a plan: cover the circuit, order the groups, fix what each edge is stored as and where."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from metpipe.circuit.binding import check_arguments
from metpipe.circuit.errors import Cycle, EmptySection, FormatConflict
from metpipe.circuit.ir import Circuit, Edge
from metpipe.circuit.match import Chain, cover
from metpipe.circuit.plan import Group, Plan
from metpipe.circuit.rules import Element, RuleSet
from metpipe.circuit.situation import Situation
from metpipe.circuit.vocabulary import MODES
from metpipe.circuit.wiring import predecessors

__all__ = ["fuse"]


def fuse(circuit: Circuit, rules: RuleSet, situation: Situation) -> Plan:
    """The plan of a circuit for a situation. Pure; the file order of rules does not matter.

    Raises:
        ConfigError: of the kinds ZeroRows, PolicyMissing, UnknownRule, MissingKernel, EmptySection,
            Uncovered, Cycle, FormatConflict, BadArgument.
    """
    situation.check(rules)
    section = MODES[situation.mode].section
    if not any(node.section == section for node in circuit.nodes):
        raise EmptySection(
            f"the circuit {circuit.arch} has no {section} nodes, which mode {situation.mode} runs"
        )
    before = predecessors(circuit, section)
    chains = cover(circuit, rules, situation, before)
    groups = _ordered(circuit, chains, before)
    plan = _plan(circuit, situation, groups)
    check_arguments(plan)
    return plan


def _ordered(
    circuit: Circuit, chains: Sequence[Chain], before: tuple[frozenset[int], ...]
) -> tuple[Group, ...]:
    """Topological over groups; of those that may run, the one with the lowest member is next."""
    chains = sorted(chains, key=lambda chain: min(chain.nodes))
    owner = {node: number for number, chain in enumerate(chains) for node in chain.nodes}
    waits = [
        {owner[other] for node in chain.nodes for other in before[node]} - {number}
        for number, chain in enumerate(chains)
    ]
    followers: list[list[int]] = [[] for _ in chains]
    for number, others in enumerate(waits):
        for other in others:
            followers[other].append(number)
    ready = [number for number, others in enumerate(waits) if not others]
    heapify(ready)
    order: list[int] = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for follower in followers[number]:
            waits[follower].discard(number)
            if not waits[follower]:
                heappush(ready, follower)
    if len(order) < len(chains):
        raise _cycle(circuit, [chain for n, chain in enumerate(chains) if waits[n]])
    return tuple(
        Group(index, chains[number].rule, chains[number].nodes)
        for index, number in enumerate(order)
    )


def _cycle(circuit: Circuit, stuck: Sequence[Chain]) -> Cycle:
    listed = "; ".join(
        f"{chain.rule.id} over {', '.join(circuit.nodes[node].id for node in chain.nodes)}"
        for chain in stuck[:4]
    )
    return Cycle(
        f"these groups wait for each other, so none can run first: {listed}. A sibling element "
        "joins nodes that another group separates; make the pattern a chain"
    )


def _plan(circuit: Circuit, situation: Situation, groups: tuple[Group, ...]) -> Plan:
    owner: dict[int, int] = {}
    element: dict[int, Element] = {}
    for group in groups:
        for part, node in zip(group.rule.pattern, group.nodes, strict=True):
            owner[node], element[node] = group.index, part
    edges = [
        edge
        for edge in circuit.edges.values()
        if edge.producer in owner or any(reader in owner for reader in edge.consumers)
    ]
    stored = {edge.id: _stored(edge, element) for edge in edges}
    _check_formats(circuit, groups, stored, owner, element)
    return Plan(
        circuit=circuit,
        mode=situation.mode,
        rows=situation.rows,
        groups=groups,
        stored=stored,
        materialized=frozenset(edge.id for edge in edges if not _is_fused(edge, owner, element)),
        table=situation.table,
    )


def _stored(edge: Edge, element: dict[int, Element]) -> str:
    producer = element.get(edge.producer) if edge.producer is not None else None
    return producer.writes if producer and producer.writes else edge.format


def _is_fused(edge: Edge, owner: dict[int, int], element: dict[int, Element]) -> bool:
    """Whether producer and all readers are in one group, and nothing asks for it in memory."""
    if edge.producer not in owner or edge.is_output or not edge.consumers:
        return False
    group = owner[edge.producer]
    return not element[edge.producer].stored and all(
        owner.get(reader) == group for reader in edge.consumers
    )


def _check_formats(
    circuit: Circuit,
    groups: tuple[Group, ...],
    stored: dict[str, str],
    owner: dict[int, int],
    element: dict[int, Element],
) -> None:
    """Each element must read what is there: its `input` (first edge) or the declared format."""
    for group in groups:
        for node in group.nodes:
            for position, edge_id in enumerate(circuit.nodes[node].inputs):
                edge = circuit.edges[edge_id]
                held = stored[edge_id]
                if edge.producer is not None and owner.get(edge.producer) == group.index:
                    held = element[edge.producer].holds or held
                wanted = (element[node].input if position == 0 else None) or edge.format
                if held != wanted:
                    raise FormatConflict(
                        f"{group.rule.source}, rule {group.rule.id}: {circuit.nodes[node].id} "
                        f"reads {edge_id} as {wanted}, and it is stored as {held}; name the format "
                        "it reads in `input`, or let the producer write the other one"
                    )
