"""A plan made ready to run: an arena laid out by liveness, and a straight line of bound launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from metpipe.circuit import Group, Layout, Plan, edge_rows
from metpipe.engine.kernel_arguments import ArgumentSources

__all__ = ["Launch", "Program", "arena_views", "compile_program"]

Launch = Callable[[], None]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32}


@dataclass(frozen=True, slots=True)
class Program:
    """One (mode, rows): every host decision is made; `run` only launches."""

    plan: Plan
    rows: int
    launches: tuple[Launch, ...]
    kernels: Mapping[str, int]
    """kernel name -> launches of it in one run"""
    outputs: Mapping[str, torch.Tensor]
    """buffer name (logits, tokens) -> view of the arena, overwritten by the next run"""

    def run(self) -> None:
        """Launch everything, in plan order."""
        for launch in self.launches:
            launch()


def arena_views(
    plan: Plan, layout: Layout, rows: int, arena: torch.Tensor
) -> dict[str, torch.Tensor]:
    """edge id -> its [rows, dim] view of the arena (uint8 [total])."""
    views = {}
    for edge_id, place in layout.places.items():
        edge = plan.circuit.edges[edge_id]
        shape = (edge_rows(plan, edge, rows), edge.dim)
        raw = arena[place.offset : place.offset + place.bytes]
        views[edge_id] = raw.view(DTYPES[plan.stored[edge_id]]).view(shape)
    return views


def compile_program(
    plan: Plan,
    rows: int,
    sources: ArgumentSources,
    kernels: Mapping[str, Callable[..., Launch]],
) -> Program:
    """Bind every group's kernels to their arguments, in execution order."""
    launches: list[Launch] = []
    ran: Counter[str] = Counter()
    for group in plan.groups:
        for call in group.rule.kernels:
            launches.append(_bind(call.name, call.args, group, sources, kernels))
            ran[call.name] += 1
    outputs = {
        edge.buffer: sources.edges[edge.id]
        for edge in plan.circuit.edges.values()
        if edge.buffer is not None and edge.id in sources.edges
    }
    return Program(plan, rows, tuple(launches), dict(ran), outputs)


def _bind(
    name: str,
    args: Mapping[str, str | tuple[str, ...]],
    group: Group,
    sources: ArgumentSources,
    kernels: Mapping[str, Callable[..., Launch]],
) -> Launch:
    arguments = {key: sources.resolve(source, group) for key, source in args.items()}
    return kernels[name](**arguments)
