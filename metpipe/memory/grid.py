"""Many loads of one serve at once: the headroom of each, by the one evaluator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from metpipe.errors import ConfigError
from metpipe.memory.evaluate import headroom_at
from metpipe.memory.point import Point, Workload

__all__ = ["Loads", "Room", "grid_of", "loads_of", "refuse_all"]

Room = tuple[int, int]
"""The headroom of a load at worst and at best, in bytes."""


@dataclass(frozen=True, slots=True)
class Loads:
    """Every combination of outputs, sequences at once and prompts; the prompts change fastest."""

    isl: tuple[int, ...]
    osl: tuple[int, ...]
    concurrency: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.isl) * len(self.osl) * len(self.concurrency)


def loads_of(loads: Loads) -> Iterator[Workload]:
    """Each load, in order."""
    for osl, concurrency, isl in product(loads.osl, loads.concurrency, loads.isl):
        yield Workload(isl, osl, concurrency)


def grid_of(point: Point, loads: Loads) -> Iterator[Room | None]:
    """The headroom of each load; None for one that the serve takes at no memory.

    Raises:
        ConfigError: the serve takes none of them; else as `evaluate`.
    """
    refuse_all(point, loads)
    for load in loads_of(loads):
        asked = replace(point, workload=load)
        if load.concurrency > asked.num_slots or asked.num_tokens > point.serve.max_seq_len:
            yield None
            continue
        yield headroom_at(asked)


def refuse_all(point: Point, loads: Loads) -> None:
    """Refuse a grid of which the serve takes no load: it does not take the smallest one.

    Raises:
        ConfigError: the serve takes none of them.
    """
    smallest = Workload(min(loads.isl), min(loads.osl), min(loads.concurrency))
    asked = replace(point, workload=smallest)
    if smallest.concurrency > asked.num_slots or asked.num_tokens > point.serve.max_seq_len:
        raise ConfigError(
            f"grid: none of its {len(loads)} loads is one that the serve takes: at most "
            f"{point.serve.max_seq_len} tokens, and {point.num_slots} sequences; raise "
            "serve.max_seq_len or serve.max_batch_size, or lower the grid"
        )
