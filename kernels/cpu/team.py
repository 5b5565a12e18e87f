"""A whole step in one parallel region, whose threads take the chunks of each launch in turn.

Entering a region for each launch costs microseconds where the machine is quiet and milliseconds
where it is not. Here it is entered once a step, and no thread waits for another to come: whoever is
there takes the next chunk, and goes on to the next launch once every chunk of this one is done. So
one thread alone finishes the step as well. Which thread computes a chunk changes no bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from itertools import groupby

import numba
from numba import prange

from .atomic import atomic_add, atomic_load, atomic_store, pause, yield_core
from .jit import device
from .launch import HEADER, Launch, call_body
from .memory import load_i64

__all__ = ["StepLaunch", "together"]

TAKEN, DONE = 0, 1
"""Of each launch: the chunks that threads have taken, and those that are done."""
COUNTERS = 2
SPINS = 1000
"""A thread waits this often, some ten microseconds, before it gives its core away."""


@device
def _await_chunks(counters, done, chunks):
    spins = 0
    while atomic_load(counters, done) < chunks:
        if spins < SPINS:
            pause()
        else:
            yield_core()
        spins += 1


@device
def _work(table, count, counters):
    """One thread's way through the step."""
    for i in range(count):
        body = load_i64(table, HEADER * i)
        arguments = load_i64(table, HEADER * i + 1)
        chunks = load_i64(table, HEADER * i + 2)
        taken, done = COUNTERS * i + TAKEN, COUNTERS * i + DONE
        chunk = atomic_add(counters, taken, 1)
        while chunk < chunks:
            call_body(body, arguments, chunk, chunks)
            atomic_add(counters, done, 1)
            chunk = atomic_add(counters, taken, 1)
        _await_chunks(counters, done, chunks)


@device(parallel=True)
def _play_together(table, count, counters, threads):
    for word in range(COUNTERS * count):
        atomic_store(counters, word, 0)
    for _ in prange(threads):
        _work(table, count, counters)


class StepLaunch:
    """Runs the launches of a step in their order, on all threads."""

    __slots__ = ("_arguments", "_kept")

    def __init__(self, launches: Sequence[Launch]) -> None:
        table = array("q")
        for launch in launches:
            table.extend(launch.header)
        count = len(table) // HEADER
        counters = array("q", [0] * (COUNTERS * count))
        self._kept = (table, counters, tuple(launches))
        self._arguments = (
            table.buffer_info()[0],
            count,
            counters.buffer_info()[0],
            numba.get_num_threads(),
        )

    def __call__(self) -> None:
        _play_together(*self._arguments)


def together(launches: Sequence[Callable[[], object]]) -> Callable[[], None]:
    """One launch that runs these in order: the same bodies on the same chunks, the same bits.

    A launch that is not this set's (a user's kernel may be any callable) runs by itself between.
    """
    if all(isinstance(launch, Launch) for launch in launches):
        return StepLaunch(launches)
    parts: list[Callable[[], object]] = []
    for ours, group in groupby(launches, key=lambda launch: isinstance(launch, Launch)):
        members = tuple(group)
        parts += (StepLaunch(members),) if ours else members

    def run() -> None:
        for part in parts:
            part()

    return run
