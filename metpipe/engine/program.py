"""A plan made ready to run: views of the arena, and a straight line of bound launches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from metpipe.circuit import Group, Kernel, Layout, Plan, edge_rows
from metpipe.engine.kernel_arguments import ArgumentSources
from metpipe.engine.kernel_sets import OVERLAY
from metpipe.errors import ConfigError

__all__ = ["Launch", "Program", "arena_views", "compile_program"]

Launch = Callable[[], None]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "i32": torch.int32}


@dataclass(frozen=True, slots=True)
class Program:
    """One (mode, rows): every host decision is made; only the launches are left."""

    plan: Plan
    rows: int
    launches: tuple[Launch, ...]
    kernels: tuple[str, ...]
    """the kernel of each launch"""
    outputs: Mapping[str, torch.Tensor]
    """buffer name (logits, tokens) -> view of the arena, overwritten by the next run"""


def arena_views(
    plan: Plan, layout: Layout, rows: int, arena: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Each edge's [rows, dim] view of the arena (uint8 [total]), by edge id."""
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
    launched: list[str] = []
    for group in plan.groups:
        _refuse_repeat(group)
        for kernel in group.rule.kernels:
            launches.append(_bind(kernel, group, sources, kernels))
            launched.append(kernel.name)
    outputs = {
        edge.buffer: sources.edges[edge.id]
        for edge in plan.circuit.edges.values()
        if edge.buffer is not None and edge.id in sources.edges
    }
    return Program(plan, rows, tuple(launches), tuple(launched), outputs)


def _refuse_repeat(group: Group) -> None:
    if group.rule.repeat != "once" or group.rule.runs:
        raise ConfigError(
            f"{group.rule.source}, rule {group.rule.id}: repeat={group.rule.repeat!r} can be "
            'planned but not run: programs launch each kernel once a step; use repeat = "once"'
        )


def _bind(
    kernel: Kernel,
    group: Group,
    sources: ArgumentSources,
    kernels: Mapping[str, Callable[..., Launch]],
) -> Launch:
    arguments = {name: sources.resolve(source, group) for name, source in kernel.args.items()}
    said = f"{group.rule.source}, rule {group.rule.id}: its kernel {kernel.name}"
    try:
        launch = kernels[kernel.name](**arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{said} refused the arguments of its args table: {error}") from error
    except RuntimeError as error:
        raise ConfigError(f"{said}: {error}") from error
    except Exception as error:
        if not kernel.module.startswith(OVERLAY):
            raise
        what = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{said} raised when it was bound: {what}") from error
    if not callable(launch):
        raise ConfigError(f"{said} returned {launch!r}, which is no launch; return bind(...)")
    return _of_theirs(launch, said) if kernel.module.startswith(OVERLAY) else launch


def _of_theirs(launch: Launch, said: str) -> Launch:
    """A launch of a user's folder: what it raises is the user's, and is told as such."""
    if hasattr(launch, "header"):
        return launch  # compiled and bound by the built-in set: nothing of theirs can raise

    def run() -> None:
        try:
            launch()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ConfigError(f"{said} raised when it was launched: {what}") from error

    return run
