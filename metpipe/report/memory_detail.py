"""What lies behind the bill of a memory plan, in MiB: header, nodes, states and caches, runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import RenderableType
from rich.table import Table

from metpipe.report.memory_section import MemorySection, Node, State
from metpipe.report.units import count, indented, plain_table

__all__ = ["Fold", "folded", "parts"]

MIB = 1 << 20
SHARED = (
    "workspace: the largest buffer that a node's kernels use; nodes whose kernels are of one "
    "family share it"
)


@dataclass(slots=True)
class Fold:
    """Equal nodes of all layers in one row: `nodes` of them, sizes added, the workspace shared."""

    key: str
    op: str
    nodes: int = 0
    stored: int = 0
    derived: int = 0
    activations: int = 0
    workspace: int = 0
    state: int = 0

    def add(self, node: Node) -> None:
        """Another node of the row."""
        self.nodes += 1
        self.stored += node.stored
        self.derived += sum(copy.bytes for copy in node.derived)
        self.activations += node.activations
        self.workspace = max(self.workspace, node.workspace)
        self.state += node.state

    @property
    def sizes(self) -> tuple[int, ...]:
        """Stored, derived, activations, workspace, state."""
        return (self.stored, self.derived, self.activations, self.workspace, self.state)


def parts(memory: MemorySection, *, per_node: bool = False) -> Iterator[RenderableType]:
    """The tables, below what the accounting says above its numbers."""
    if memory.header.facts:
        yield facts(memory)
    yield nodes(memory, per_node=per_node)
    if sum(node.workspace > 0 for node in memory.nodes) > 1:
        yield indented(SHARED, "dim")
    yield states(memory)
    yield runs(memory)
    if memory.workspaces:
        yield workspaces(memory)


def facts(memory: MemorySection) -> Table:
    """The header's lines."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for key, line in memory.header.facts.items():
        grid.add_row(key, line)
    return grid


def nodes(memory: MemorySection, *, per_node: bool = False) -> Table:
    """What each node owns, in the model's order; a row of nothing is left out."""
    table = plain_table("Nodes: MiB", "node")
    table.add_column("op", no_wrap=True)
    for column in ("x", "stored", "derived", "activations", "workspace", "state"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in folded(memory.nodes, per_node=per_node):
        if any(row.sizes):
            table.add_row(row.key, row.op, count(row.nodes), *map(_mib, row.sizes))
    return table


def folded(found: tuple[Node, ...], *, per_node: bool) -> list[Fold]:
    """A row per node of a block, in order of its first; nodes outside the layers as they are."""
    rows: dict[str, Fold] = {}
    for node in found:
        in_layer = node.layer is not None and not per_node
        key = node.node.partition(".")[2] if in_layer else node.node
        rows.setdefault(key, Fold(key, node.op)).add(node)
    return list(rows.values())


def states(memory: MemorySection) -> Table:
    """States and caches by name; `x` is how many layers have one."""
    table = plain_table("States and caches", "state")
    for column in ("kind", "holding", "lifetime", "dtype"):
        table.add_column(column, no_wrap=True)
    for column in ("x", "units each", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, state in sorted(
        ((_name(state), state) for state in memory.states if state.bytes), key=lambda row: row[0]
    ):
        table.add_row(
            name,
            state.kind,
            state.holding,
            state.lifetime,
            state.dtype,
            count(len(state.states)),
            count(state.units),
            _mib(state.bytes),
        )
    return table


def runs(memory: MemorySection) -> Table:
    """The programs that are planned."""
    table = plain_table("Planned activations: MiB", "run", "rows", "arena", "materialized")
    table.add_column("at most, since no kernel covers", overflow="fold")
    for run in memory.runs:
        uncovered = ", ".join(run.uncovered) or "-"
        sizes = (_mib(run.arena), _mib(run.materialized))
        table.add_row(run.label, count(run.rows), *sizes, uncovered)
    return table


def workspaces(memory: MemorySection) -> Table:
    """Scratch of the kernel families."""
    table = plain_table("Workspaces: MiB", "family", "nodes", "size")
    table.add_column("workspace")
    table.add_column("in the arena")
    for space in memory.workspaces:
        held = "yes" if space.in_arena else "no"
        table.add_row(space.family, count(space.nodes), _mib(space.bytes), space.name, held)
    return table


def _name(state: State) -> str:
    return f"draft.{state.local}" if state.section == "draft" else state.local


def _mib(size: int) -> str:
    return f"{size / MIB:,.1f}"
