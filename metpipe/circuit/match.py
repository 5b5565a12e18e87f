"""Covers a circuit with rules: greedy, deterministic, one rule after the other by priority."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from metpipe.circuit.errors import Uncovered
from metpipe.circuit.formats import parse_format
from metpipe.circuit.ir import Circuit, Node
from metpipe.circuit.rows import row_symbol, step_rows
from metpipe.circuit.rules import Element, Rule, RuleSet
from metpipe.circuit.situation import Situation, obstacle
from metpipe.circuit.sources import sources_in
from metpipe.circuit.vocabulary import MODES
from metpipe.nouns import number_of

__all__ = ["Chain", "cover"]


@dataclass(frozen=True, slots=True)
class Chain:
    """Nodes that a rule takes, in pattern order."""

    rule: Rule
    nodes: tuple[int, ...]


def cover(
    circuit: Circuit,
    rules: RuleSet,
    situation: Situation,
    predecessors: tuple[frozenset[int], ...],
) -> tuple[Chain, ...]:
    """Take every node of the mode's section by exactly one rule.

    Rules come by priority, highest first, then by id. A chain starts at the lowest free node that
    fits; each next element takes the lowest free reader of a member's output (or, sibling, node
    of the first member's block) that fits.

    Raises:
        Uncovered: a node that no rule takes, with what is in the way of the rules that name its op.
    """
    matcher = _Matcher(circuit, situation, predecessors)
    chains = [
        chain
        for rule in sorted(rules.rules.values(), key=lambda rule: (-rule.priority, rule.id))
        if obstacle(rule, situation) is None
        for chain in matcher.chains(rule)
    ]
    if matcher.free:
        raise matcher.uncovered(min(matcher.free), rules)
    return tuple(chains)


class _Matcher:
    def __init__(
        self,
        circuit: Circuit,
        situation: Situation,
        predecessors: tuple[frozenset[int], ...],
    ) -> None:
        self.circuit = circuit
        self.situation = situation
        self.predecessors = predecessors
        section = MODES[situation.mode].section
        inside = [node for node in circuit.nodes if node.section == section]
        self.free = {node.index for node in inside}
        self.symbols = {node.index: row_symbol(circuit, node, situation.mode) for node in inside}
        self.by_op: dict[str, list[Node]] = {}
        for node in inside:
            self.by_op.setdefault(node.op, []).append(node)
        self.block_of = {
            index: number
            for number, block in enumerate(circuit.blocks)
            for index in range(block.first, block.last)
        }

    def chains(self, rule: Rule) -> Iterator[Chain]:
        """Take, one after the other, all chains of a rule."""
        for node in self.by_op.get(rule.pattern[0].op, []):
            members = self._grow(rule, node)
            if members is not None and self._is_closed(rule, members):
                self.free.difference_update(members)
                yield Chain(rule, members)

    def _grow(self, rule: Rule, first: Node) -> tuple[int, ...] | None:
        if first.index not in self.free or not self._starts(rule, first):
            return None
        members = [first.index]
        for position in range(1, len(rule.pattern)):
            following = self._next(rule, position, members)
            if following is None:
                return None
            members.append(following)
        return tuple(members)

    def _starts(self, rule: Rule, first: Node) -> bool:
        rows = step_rows(self.symbols[first.index], self.situation.rows, self.situation.mode)
        return rule.rows[0] <= rows <= rule.rows[1] and self._fits(rule, 0, first)

    def _next(self, rule: Rule, position: int, members: list[int]) -> int | None:
        element = rule.pattern[position]
        symbol = self.symbols[members[0]]
        candidates = self._siblings(members[0]) if element.sibling else self._readers(members)
        for index in candidates:
            if (
                index in self.free
                and index not in members
                and self.symbols[index] == symbol
                and self._fits(rule, position, self.circuit.nodes[index])
            ):
                return index
        return None

    def _siblings(self, first: int) -> range:
        block = self.circuit.blocks[self.block_of[first]]
        return range(block.first, block.last)

    def _readers(self, members: list[int]) -> list[int]:
        return sorted(
            {
                reader
                for index in members
                for edge in self.circuit.nodes[index].outputs
                for reader in self.circuit.edges[edge].consumers
            }
        )

    def _fits(self, rule: Rule, position: int, node: Node) -> bool:
        return self._misfit(rule, position, node) is None

    def _misfit(self, rule: Rule, position: int, node: Node) -> str | None:
        """What keeps a node from being an element of a pattern; None when nothing does."""
        element = rule.pattern[position]
        if node.op != element.op:
            return f"it is for {element.op}"
        if element.roles and node.role not in element.roles:
            return f"it is for the roles {', '.join(element.roles)}"
        for name, wanted, has in (
            ("layers of kind", element.layer_kind, node.layer_kind),
            ("the node", element.local, node.local),
            ("weights in", element.weight, node.weight_format),
            ("writing", element.format, self._written(node)),
        ):
            if wanted is not None and wanted != has:
                return f"it is for {name} {wanted}"
        if element.weight is None and _is_quantised(node.weight_format):
            return f"it does not say that it reads weights in {node.weight_format}"
        if node.has_bias and not _is_given(rule, f"{position}.bias"):
            return "it takes no bias, and the node has one"
        for tensor in node.tensors:
            if not _is_given(rule, f"{position}.tensor.{tensor.local}"):
                return f"it does not take the node's tensor {tensor.local}"
        if "unlowered" in node.params and not _is_given(rule, f"{position}.param.unlowered"):
            return f"the node is data only: {node.params['unlowered']}"
        form = node.params.get("weight_form", "plain")
        if form != "plain" and not _is_given(rule, f"{position}.param.weight_form"):
            return f"it takes weights as stored, and the node's weight_form is {form}"
        return self._unread_format(element, node)

    def _written(self, node: Node) -> str | None:
        return self.circuit.edges[node.outputs[0]].format if node.outputs else None

    def _unread_format(self, element: Element, node: Node) -> str | None:
        """A quantised edge is read only by an element that names its format, and by no other."""
        wanted = element.input
        for edge_id in node.inputs:
            has = self.circuit.edges[edge_id].format
            if parse_format(has).is_quantised and has != wanted:
                return f"it does not read {has}"
        if wanted is None or not parse_format(wanted).is_quantised:
            return None
        first = self.circuit.edges[node.inputs[0]].format if node.inputs else None
        return None if first == wanted else f"it reads {wanted}"

    def _is_closed(self, rule: Rule, members: tuple[int, ...]) -> bool:
        return not self._leaks(rule, members) and not self._surrounds(members)

    def _leaks(self, rule: Rule, members: tuple[int, ...]) -> bool:
        """Whether an output that is not kept is wanted outside."""
        inside = set(members)
        for element, index in zip(rule.pattern[:-1], members[:-1], strict=True):
            for edge_id in () if element.keep else self.circuit.nodes[index].outputs:
                edge = self.circuit.edges[edge_id]
                if edge.is_output or not inside.issuperset(edge.consumers):
                    return True
        return False

    def _surrounds(self, members: tuple[int, ...]) -> bool:
        """Whether an outside node lies on a path between members."""
        inside = set(members)
        behind: set[int] = set()
        for index in range(min(members), max(members) + 1):
            before = self.predecessors[index]
            if index not in inside:
                if not before.isdisjoint(inside | behind):
                    behind.add(index)
            elif not before.isdisjoint(behind):
                return True
        return False

    def uncovered(self, index: int, rules: RuleSet) -> Uncovered:
        """The error for a node that no rule took."""
        node, situation = self.circuit.nodes[index], self.situation
        role = f":{node.role}" if node.role else ""
        reasons = [
            f"{rule.id}: {self._reason(rule, node)}"
            for rule in sorted(rules.rules.values(), key=lambda rule: (len(rule.pattern), rule.id))
            if any(element.op == node.op for element in rule.pattern)
        ]
        listed = "; ".join(reasons[:6]) or "none names this op"
        others = sorted({self.circuit.nodes[other].op for other in self.free} - {node.op})
        left = f". Other ops with untaken nodes: {', '.join(others)}" if others else ""
        return Uncovered(
            f"no rule of {rules.source} takes the node {node.id} ({node.op}{role}) in mode "
            f"{situation.mode} at {number_of(situation.rows, 'row')}. Rules that name the op: "
            f"{listed}{left}",
            ops=tuple(dict.fromkeys(_op_text(self.circuit.nodes[i]) for i in sorted(self.free))),
        )

    def _reason(self, rule: Rule, node: Node) -> str:
        refused = obstacle(rule, self.situation)
        if refused is not None:
            return refused
        rows = step_rows(self.symbols[node.index], self.situation.rows, self.situation.mode)
        if not rule.rows[0] <= rows <= rule.rows[1]:
            return f"it is for {rule.rows[0]} to {rule.rows[1]} rows"
        misfits = [
            self._misfit(rule, position, node)
            for position, element in enumerate(rule.pattern)
            if element.op == node.op
        ]
        return misfits[0] or "its chain is not here"


def _op_text(node: Node) -> str:
    """An op as a reader knows it: `linear:q`, `linear in fp8/channel`."""
    if _is_quantised(node.weight_format):
        return f"{node.op} in {node.weight_format}"
    return f"{node.op}:{node.role}" if node.role else node.op


def _is_quantised(spelling: str | None) -> bool:
    return spelling is not None and parse_format(spelling).is_quantised


def _is_given(rule: Rule, wanted: str) -> bool:
    """Whether a kernel of a rule gets this argument. A rule without any args is not judged."""
    args = [source for kernel in rule.kernels for source in kernel.args.values()]
    args += [
        source for run in rule.runs for kernel, _ in run.launches for source in kernel.args.values()
    ]
    return not args or any(wanted in sources_in(source) for source in args)
