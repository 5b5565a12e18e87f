"""A plan's sizes as functions of the row count: its arena, and the workspaces of its kernels.

Everything that does not depend on rows is worked out once per plan. The arena equals
`circuit.layout(plan, rows)`, total and sum, without placing each edge of each layer again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit import Edge, Plan, edge_rows, live_ranges, parse_expr, tensor_bytes
from metpipe.memory.arena import FOREVER, Birth, Lifetimes, arena_bytes
from metpipe.memory.kernel_set import Family, Workspace

__all__ = ["PlanSizes", "WorkspaceNeed"]


@dataclass(frozen=True, slots=True)
class WorkspaceNeed:
    """What one run needs of a family's buffer, and how many nodes launch with it."""

    family: str
    name: str
    bytes: int
    nodes: int
    in_arena: bool


@dataclass(frozen=True, slots=True)
class _Use:
    """A family's buffer in a plan: the distinct input widths of its nodes (None: no input)."""

    family: str
    workspace: Workspace
    widths: tuple[int | None, ...]
    nodes: int


@dataclass(frozen=True, slots=True)
class _SizeClass:
    """Edges of one size: an example, its stored format, and how many there are."""

    edge: Edge
    format: str
    count: int


@dataclass(slots=True, eq=False)
class PlanSizes:
    """One plan (exact for the rows of its bucket) and its sizes, kept per row count."""

    plan: Plan
    families: tuple[Family, ...]
    uncovered: tuple[str, ...] = ()
    """ops that no kernel covers; the plan is then one group per op"""
    _classes: tuple[_SizeClass, ...] = field(init=False)
    _lifetimes: Lifetimes = field(init=False)
    _uses: tuple[_Use, ...] = field(init=False)
    _arenas: dict[int, tuple[int, int]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._classes, self._lifetimes = _analysed(self.plan)
        self._uses = _uses(self.plan, self.families)

    def arena(self, rows: int) -> tuple[int, int]:
        """(arena bytes, plain sum of the materialised edges) of a run over `rows` rows."""
        if rows not in self._arenas:
            sizes = [
                tensor_bytes(entry.format, edge_rows(self.plan, entry.edge, rows), entry.edge.dim)
                for entry in self._classes
            ]
            total = sum(
                size * entry.count for size, entry in zip(sizes, self._classes, strict=True)
            )
            self._arenas[rows] = arena_bytes(self._lifetimes, sizes), total
        return self._arenas[rows]

    def workspaces(self, rows: int, names: Mapping[str, int]) -> tuple[WorkspaceNeed, ...]:
        """Each family's buffers for a run over `rows` rows; `names` joins dims, `n` and `k`.

        Raises:
            ConfigError: an expression names what nobody knows.
        """
        known = {**self.plan.circuit.dims, **names, "n": rows}
        return tuple(
            WorkspaceNeed(
                use.family,
                use.workspace.name,
                _largest(use, known),
                use.nodes,
                use.workspace.in_arena,
            )
            for use in self._uses
        )


def _largest(use: _Use, known: Mapping[str, int]) -> int:
    source = f"{use.workspace.source}, " if use.workspace.source else ""
    where = f"{source}workspace {use.family}.{use.workspace.name}"
    expressions = [parse_expr(text, where) for text in use.workspace.expressions]
    return max(
        expression.value(known if width is None else {**known, "k": width}, where, round_up=True)
        for expression in expressions
        for width in use.widths
    )


def _analysed(plan: Plan) -> tuple[tuple[_SizeClass, ...], Lifetimes]:
    """Size classes of the materialised edges, and the live ranges as indices into them."""
    edges = plan.circuit.edges
    keys = {
        edge_id: (plan.stored[edge_id], edges[edge_id].rows, edges[edge_id].dim)
        for edge_id in live_ranges(plan)
    }
    counts = Counter(keys.values())
    index = {key: number for number, key in enumerate(counts)}
    examples = {key: edges[edge_id] for edge_id, key in keys.items()}
    classes = tuple(_SizeClass(examples[key], key[0], count) for key, count in counts.items())
    return classes, _lifetimes(plan, {edge_id: index[key] for edge_id, key in keys.items()})


def _lifetimes(plan: Plan, size_of: Mapping[str, int]) -> Lifetimes:
    """Births in edge order, per group; what lives to the last group has no end."""
    last = len(plan.groups) - 1
    births: list[list[Birth]] = [[] for _ in plan.groups]
    for edge_id, (start, end) in live_ranges(plan).items():
        births[start].append(Birth(size_of[edge_id], FOREVER if end == last else end - start))
    distinct = tuple(dict.fromkeys(map(tuple, births)))
    number = {group: position for position, group in enumerate(distinct)}
    return Lifetimes(tuple(number[tuple(group)] for group in births), distinct)


def _uses(plan: Plan, families: tuple[Family, ...]) -> tuple[_Use, ...]:
    """Every buffer that some group's kernels need, in the order of the families."""
    uses = []
    for family in families:
        nodes = [
            plan.circuit.nodes[index]
            for group in plan.groups
            if group.rule.kernel_names & family.kernels
            for index in group.nodes
        ]
        inputs = (node.inputs[0] if node.inputs else None for node in nodes)
        widths = {None if edge is None else plan.circuit.edges[edge].dim for edge in inputs}
        if nodes:
            uses += [
                _Use(family.name, workspace, tuple(widths), len(nodes))
                for workspace in family.workspaces
            ]
    return tuple(uses)
