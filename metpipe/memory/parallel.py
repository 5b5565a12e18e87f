"""A model shared out over ranks: each has a circuit, and so plans and arenas, of its own.

Ranks of one stage hold as much as each other, so one of them stands for all.
"""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit import Circuit, Ranks, Select, layers_of, shard
from metpipe.memory.kernel_set import KernelSet
from metpipe.memory.planned import Planned

__all__ = ["Parallel", "Stage", "share_out"]


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """The ranks `first`..`last`, which hold these layers; `planned` is any of them."""

    first: int
    last: int
    layers: range
    planned: Planned


@dataclass(frozen=True, slots=True, eq=False)
class Parallel:
    """Every stage of a model that several ranks share."""

    ranks: Ranks
    stages: tuple[Stage, ...]


def share_out(circuit: Circuit, ranks: Ranks, kernel_set: KernelSet, select: Select) -> Parallel:
    """The stages of a whole model's circuit.

    Raises:
        ConfigError: what does not divide.
    """
    return Parallel(
        ranks,
        tuple(
            Stage(
                first=index * ranks.per_stage,
                last=(index + 1) * ranks.per_stage - 1,
                layers=layers_of(circuit, ranks, index),
                planned=Planned(shard(circuit, ranks, index * ranks.per_stage), kernel_set, select),
            )
            for index in range(ranks.pipeline)
        ),
    )
