"""One step of a circuit forward, launch by launch, each edge digested when it is written.

For localising a difference. An edge that lives inside a group has no memory and no digest.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.pools import Sequence
from metpipe.engine.runners import CircuitRunner
from metpipe.engine.step_inputs import RowRun

__all__ = ["WrittenEdge", "trace_step"]


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


def trace_step(
    model: Model, forward: Forward, sequence: Sequence, mode: str, tokens: Items[int]
) -> tuple[WrittenEdge, ...]:
    """Run one step, as the forward would, and digest every edge when it is written.

    The edges come in the order in which the plan writes them; the sequence is `tokens` longer
    afterwards.
    """
    assert isinstance(forward.runner, CircuitRunner), "only a circuit forward has edges"
    model.pool.reserve(sequence, sequence.length + len(tokens))
    model.step.fill([RowRun(sequence, tokens, sequence.length)], len(tokens))
    program, edges = forward.runner.program(mode, len(tokens))
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
                    digest=model.hash_bytes(edges[edge].contiguous()),
                )
                for edge in node.outputs
                if edge in edges
            ]
    sequence.length += len(tokens)
    return tuple(written)
