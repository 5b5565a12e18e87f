"""The stages of a run as a graph: who needs whom, in which order they can go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeAlias

from metpipe.pipeline.progress import Progress

__all__ = ["PlanError", "Stage", "StageContext", "Work", "order"]


class PlanError(Exception):
    """The stages make no graph: a bug of whoever planned them, not of the user."""


@dataclass(slots=True)
class StageContext:
    """What a stage's function is handed.

    `out` is a scratch folder that becomes the stage's result, whole, once the function returns;
    `inputs` are the finished folders of the stages it needs; `live` is the process's live model.
    """

    out: Path
    params: Mapping[str, object]
    inputs: Mapping[str, Path]
    progress: Progress
    live: object


Work: TypeAlias = Callable[[StageContext], Mapping[str, object]]
"""Writes files into `out`, returns the record that is kept beside them as result.json."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One node: what it runs, the part of the config that it reads (JSON), the stages it needs."""

    name: str
    work: Work
    params: Mapping[str, object] = field(default_factory=dict)
    needs: tuple[str, ...] = ()


def order(stages: Sequence[Stage]) -> tuple[str, ...]:
    """The stages' names, each behind all that it needs; ties as given.

    Raises:
        PlanError: a name used twice, a need that is not in the plan, or a cycle, with its path.
    """
    names = [stage.name for stage in stages]
    if twice := {name for name in names if names.count(name) > 1}:
        raise PlanError(f"two stages are named {' and '.join(sorted(twice))}")
    for stage in stages:
        for need in stage.needs:
            if need not in names:
                raise PlanError(f"stage {stage.name!r} needs {need!r}, which is not in the plan")
    try:
        return tuple(TopologicalSorter({s.name: s.needs for s in stages}).static_order())
    except CycleError as error:
        raise PlanError("cycle: " + " -> ".join(error.args[1])) from None
