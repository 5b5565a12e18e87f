"""A plan: the cover of a circuit for one (mode, rows), in execution order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from metpipe.circuit.digest import plan_digest
from metpipe.circuit.ir import Circuit, Edge
from metpipe.circuit.rows import count_rows, row_symbol, step_rows
from metpipe.circuit.rules import Rule, RunSelector, repeats
from metpipe.circuit.runs import RowTable, Run
from metpipe.circuit.vocabulary import MODES

__all__ = ["Group", "Plan", "edge_rows"]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run as one: `nodes` in pattern order, `index` its place in the execution order."""

    index: int
    rule: Rule
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs. `stored` holds every edge that a node of the section writes or reads."""

    circuit: Circuit
    mode: str
    rows: int
    groups: tuple[Group, ...]
    stored: Mapping[str, str]
    """edge -> the format it is stored in"""
    materialized: frozenset[str]
    """edges that are in memory between groups; the others live inside one"""
    table: RowTable | None = None

    @property
    def section(self) -> str:
        """Main or draft."""
        return MODES[self.mode].section

    def launches(self, rows: int) -> int:
        """Kernels that one run over `rows` rows launches."""
        return sum(self._group_launches(group, rows) for group in self.groups)

    def copies(self, rows: int) -> int:
        """Copies of one run over `rows` rows."""
        return sum(self._group_copies(group, rows) for group in self.groups)

    def digest(self) -> str:
        """Hex SHA-256 of what runs; it moves exactly when that does."""
        return plan_digest(self)

    def rules_used(self) -> frozenset[str]:
        """Ids of the rules that took at least one group."""
        return frozenset(group.rule.id for group in self.groups)

    def group_rows(self, group: Group, rows: int) -> int:
        """Rows that a group runs over in a step of `rows` rows."""
        symbol = row_symbol(self.circuit, self.circuit.nodes[group.nodes[0]], self.mode)
        return step_rows(symbol, rows, self.mode)

    def fused_edges(self) -> Iterator[str]:
        """Edges that never reach memory."""
        return (edge for edge in self.stored if edge not in self.materialized)

    def _group_launches(self, group: Group, rows: int) -> int:
        if group.rule.runs:
            return sum(
                run.times(how)
                for run, selector in self._selected(group)
                for _, how in selector.launches
            )
        return len(group.rule.kernels) * repeats(group.rule.repeat, self.group_rows(group, rows))

    def _group_copies(self, group: Group, rows: int) -> int:
        if not group.rule.runs:
            return repeats(group.rule.copies, self.group_rows(group, rows))
        return sum(
            run.times(selector.copies)
            for run, selector in self._selected(group)
            if selector.copies is not None
        )

    def _selected(self, group: Group) -> Iterator[tuple[Run, RunSelector]]:
        assert self.table is not None, "rules that launch per run need a row table"
        for run in self.table.runs:
            selector = self.table.selector(run, group.rule.runs)
            assert selector is not None, "the situation admitted the rule"
            yield run, selector


def edge_rows(plan: Plan, edge: Edge, rows: int) -> int:
    """Rows of an edge in a step of `rows` rows under the plan's mode."""
    return count_rows(plan.circuit, edge, rows, plan.mode)
