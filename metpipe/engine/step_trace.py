"""One step of a circuit forward, launch by launch, each edge digested when it is written.

For localising a difference. An edge that lives inside a group has no memory and no digest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.runners import CircuitRunner

__all__ = ["WrittenEdge", "first_differing", "live_rows", "trace_step"]


@dataclass(frozen=True, slots=True)
class WrittenEdge:
    """An edge in memory after its group ran: who wrote it, and its 128-bit digest."""

    edge: str
    node: str
    op: str
    layer: int | None
    rule: str
    members: tuple[str, ...]
    """the nodes of the group that wrote it"""
    digest: str

    @property
    def written(self) -> str:
        """Which edge it is and who wrote it, in a sentence's words."""
        members = ", ".join(self.members)
        return f"{self.edge} ({self.op}), written by the rule {self.rule} over {members}"


def trace_step(
    model: Model,
    forward: Forward,
    mode: str,
    rows: int,
    part: Callable[[torch.Tensor], torch.Tensor],
) -> tuple[WrittenEdge, ...]:
    """Run the step whose inputs are filled, and digest every edge when it is written.

    `part` says what of an edge's content counts, such as all rows but padding. The edges come in
    the order in which the plan writes them.
    """
    assert isinstance(forward.runner, CircuitRunner), "only a circuit forward has edges"
    program, edges = forward.runner.program(mode, rows)
    launches = iter(program.launches)
    written = []
    for group in program.plan.groups:
        for _ in group.rule.kernels:
            next(launches)()
        members = tuple(model.circuit.nodes[index] for index in group.nodes)
        for node in members:
            written += [
                WrittenEdge(
                    edge=edge,
                    node=node.id,
                    op=node.op,
                    layer=node.layer,
                    rule=group.rule.id,
                    members=tuple(member.id for member in members),
                    digest=model.hash_bytes(part(edges[edge]).contiguous()),
                )
                for edge in node.outputs
                if edge in edges
            ]
    return tuple(written)


def live_rows(content_RE: torch.Tensor, rows: int, live: int) -> torch.Tensor:
    """Without the rows of padding, where it has a row for each of the step's."""
    return content_RE[:live] if len(content_RE) == rows else content_RE


def first_differing(
    ours: Sequence[WrittenEdge], theirs: Sequence[WrittenEdge]
) -> WrittenEdge | None:
    """The first edge in memory on both sides that differs, in their order."""
    known: dict[str, list[str]] = {}
    for item in ours:
        known.setdefault(item.edge, []).append(item.digest)
    for item in theirs:
        if known.get(item.edge) and known[item.edge].pop(0) != item.digest:
            return item
    return None
