"""Where a rule applies: the groups it wins in circuits, modes and row counts, and their chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from metpipe.circuit import (
    Circuit,
    Group,
    Node,
    Plan,
    Rule,
    Uncovered,
    edge_rows,
    fuse,
    row_buckets,
)
from metpipe.circuit.errors import EmptySection
from metpipe.circuit.situation import obstacle
from metpipe.circuit.sources import sources_in
from metpipe.circuit.vocabulary import MODES
from metpipe.engine.microtest.candidate import Candidate
from metpipe.engine.microtest.step_layout import sequence_widths
from metpipe.errors import ConfigError

__all__ = ["Place", "find_places", "refuse_nowhere"]

ROWS = (1, 2, 3, 5, 17, 67)
"""One row; the sizes of register tiles and one more; more than a KV block; more than 64."""
EDGE_ROWS = 64
"""The end of a rule's range is tried up to here."""


@dataclass(frozen=True, slots=True)
class Place:
    """One group that the rule won. Both plans hold nothing but the group's own nodes."""

    circuit_name: str
    mode: str
    rows: int
    fused: Plan
    chain: Plan
    modes: tuple[str, ...]
    """every mode in which this is the work; the first is `mode`"""

    @property
    def circuit(self) -> Circuit:
        """The circuit that both plans are of."""
        return self.fused.circuit

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The group's nodes, in pattern order."""
        return tuple(self.circuit.nodes[index] for index in self.fused.groups[0].nodes)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Edges that the group reads from outside, in the order of their readers."""
        inside = {edge for node in self.nodes for edge in node.outputs}
        read = [edge for node in self.nodes for edge in node.inputs if edge not in inside]
        return tuple(dict.fromkeys(read))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Edges that both sides leave in memory."""
        made = [edge for node in self.nodes for edge in node.outputs]
        both = self.fused.materialized & self.chain.materialized
        return tuple(edge for edge in made if edge in both)

    @property
    def intermediates(self) -> tuple[str, ...]:
        """Edges that only the chain stores."""
        made = [edge for node in self.nodes for edge in node.outputs]
        return tuple(edge for edge in made if edge not in self.outputs)

    @property
    def states(self) -> tuple[str, ...]:
        """States that the group's nodes touch."""
        return tuple(dict.fromkeys(state for node in self.nodes for state in node.state))

    @property
    def written_states(self) -> tuple[str, ...]:
        """States that the group changes."""
        found = [state for node in self.nodes for state, how in node.state.items() if how != "read"]
        return tuple(dict.fromkeys(found))

    @property
    def kept_states(self) -> tuple[str, ...]:
        """Of those, the ones that a row may leave behind as they are right after it."""
        kinds = {state: self.circuit.states[state].kind for state in self.written_states}
        return tuple(state for state, kind in kinds.items() if kind == "recurrent")

    def rows_of(self, edge_id: str) -> int:
        """Rows of an edge in this step."""
        return edge_rows(self.fused, self.circuit.edges[edge_id], self.rows)

    @property
    def text(self) -> str:
        """For a sentence."""
        rows = "1 row" if self.rows == 1 else f"{self.rows} rows"
        return f"circuit {self.circuit_name!r}, mode {self.mode}, {rows}"


def find_places(candidate: Candidate, circuits: Mapping[str, Circuit]) -> tuple[Place, ...]:
    """In each circuit, mode and row count: one group for each different shape the rule won.

    Modes that are the same work are one place: as many rows and, where an argument comes from the
    step, of as many sequences.
    """
    found: dict[object, Place] = {}
    for name, circuit in circuits.items():
        for mode in _modes(candidate.rule):
            for place in _places_in(candidate, name, circuit, mode):
                work = _work(place)
                first = found.setdefault(work, place)
                if mode not in first.modes:
                    found[work] = replace(first, modes=(*first.modes, mode))
    return tuple(found.values())


def refuse_nowhere(candidate: Candidate, circuits: Mapping[str, Circuit]) -> ConfigError:
    """The error for a rule that won no group: where it was looked for, and what was in the way."""
    rule, rows = candidate.rule, _rows(candidate.rule)
    chain = " -> ".join(element.text for element in rule.pattern)
    found = [obstacle(rule, candidate.situation(mode, rows[0])) for mode in _modes(rule)]
    reasons = list(dict.fromkeys(reason for reason in found if reason))
    why = "; ".join(reasons) or (
        "nowhere is that chain free and closed: no other rule took a node of it first, and only "
        f"edges that the pattern keeps are read outside (its priority is {rule.priority}, those "
        "of the reference rules are 10)"
    )
    return ConfigError(
        f"{rule.source}, rule {rule.id}: it applies nowhere. The chain {chain} was looked for in "
        f"the modes {', '.join(_modes(rule))}, at {', '.join(map(str, rows))} rows, in the "
        f"circuits {', '.join(circuits)}: {why}"
    )


def _modes(rule: Rule) -> list[str]:
    return [mode for mode in MODES if mode in rule.modes]


def _rows(rule: Rule) -> list[int]:
    low, high = rule.rows
    inside = {rows for rows in ROWS if low <= rows <= high}
    return sorted(inside | {low} | ({high} if high <= EDGE_ROWS else set()))


def _places_in(candidate: Candidate, name: str, circuit: Circuit, mode: str) -> Iterator[Place]:
    """Plans are fused once per row bucket, as a forward does."""
    rows = _rows(candidate.rule)
    for bucket in row_buckets(candidate.rules, mode, rows[-1]):
        inside = [count for count in rows if bucket.low <= count <= bucket.high]
        plans = [*_plans(candidate, circuit, mode, bucket.high)] if inside else []
        for count, (fused, chain) in product(inside, plans):
            yield Place(
                name, mode, count, replace(fused, rows=count), replace(chain, rows=count), (mode,)
            )


def _plans(
    candidate: Candidate, circuit: Circuit, mode: str, rows: int
) -> Iterator[tuple[Plan, Plan]]:
    """The rule's plan and its chain's, for the first group of each shape that it won."""
    try:
        plan = fuse(circuit, candidate.rules, candidate.situation(mode, rows))
    except (EmptySection, Uncovered):
        return  # this circuit has no such section, or its other ops no rule of the set
    shapes: dict[object, Group] = {}
    for group in plan.groups:
        if group.rule.id == candidate.rule.id:
            shapes.setdefault(_shape(circuit, group), group)
    if not shapes:
        return
    situation = candidate.reference_situation(mode, rows)
    reference = fuse(circuit, candidate.builtin_rules, situation)
    for group in shapes.values():
        chain = replace(reference, groups=_chain(reference, group))
        yield replace(plan, groups=(group,)), chain


def _shape(circuit: Circuit, group: Group) -> tuple[object, ...]:
    """What makes two groups of one rule different work."""
    nodes = [circuit.nodes[index] for index in group.nodes]
    return tuple(
        (
            node.op,
            node.has_bias,
            tuple(sorted(node.params.items())),
            tuple(circuit.edges[edge].dim for edge in (*node.inputs, *node.outputs)),
        )
        for node in nodes
    )


def _work(place: Place) -> object:
    """Equal for two places at which the same kernels do the same."""
    kernels = [
        kernel
        for plan in (place.fused, place.chain)
        for group in plan.groups
        for kernel in group.rule.kernels
    ]
    sources = {
        text for kernel in kernels for source in kernel.args.values() for text in sources_in(source)
    }
    reads_step = any(text.startswith("step.") for text in sources)
    rows = tuple(place.rows_of(edge) for edge in (*place.inputs, *place.outputs))
    names = tuple(
        (group.rule.id, _shape(place.circuit, group))
        for group in (*place.fused.groups, *place.chain.groups)
    )
    widths = tuple(sequence_widths(place.mode, place.rows)) if reads_step else None
    return place.circuit_name, names, rows, widths


def _chain(reference: Plan, group: Group) -> tuple[Group, ...]:
    inside = set(group.nodes)
    chain = tuple(one for one in reference.groups if inside.issuperset(one.nodes))
    covered = {node for one in chain for node in one.nodes}
    assert covered == inside, "each reference rule takes exactly one op"
    return chain
