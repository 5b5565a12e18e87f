"""Which node must run before which: data, states, and nodes that only act on what they read."""

from __future__ import annotations

from collections import defaultdict

from metpipe.circuit.ir import Circuit

__all__ = ["predecessors"]


def predecessors(circuit: Circuit, section: str) -> tuple[frozenset[int], ...]:
    """For each node, the nodes of its section that must run before it (the others have none).

    - the producers of its inputs;
    - the last writer of each state that it touches and, where it writes, the readers since;
    - nodes without outputs (a cache write, a snapshot) that read one of its inputs earlier.
    """
    before: list[set[int]] = [set() for _ in circuit.nodes]
    _by_data(circuit, before)
    _by_state(circuit, before)
    _by_sinks(circuit, before)
    inside = {node.index for node in circuit.nodes if node.section == section}
    return tuple(
        frozenset(earlier & inside) if index in inside else frozenset()
        for index, earlier in enumerate(before)
    )


def _by_data(circuit: Circuit, before: list[set[int]]) -> None:
    for node in circuit.nodes:
        for edge in node.inputs:
            producer = circuit.edges[edge].producer
            if producer is not None:
                before[node.index].add(producer)


def _by_state(circuit: Circuit, before: list[set[int]]) -> None:
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = defaultdict(list)
    for node in circuit.nodes:
        for state, access in node.state.items():
            if state in writer:
                before[node.index].add(writer[state])
            if access in ("read", "snapshot"):
                readers[state].append(node.index)
                continue
            before[node.index].update(readers.pop(state, ()))
            writer[state] = node.index


def _by_sinks(circuit: Circuit, before: list[set[int]]) -> None:
    for node in circuit.nodes:
        if node.outputs:
            continue
        for edge in node.inputs:
            for reader in circuit.edges[edge].consumers:
                if reader > node.index:
                    before[reader].add(node.index)
