"""Both sides' time, taken in turns, so that a slow moment of the machine falls on both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from metpipe.engine.microtest.bench import Bench
from metpipe.engine.runners import in_one_launch

__all__ = ["Times", "time_both"]

SAMPLES = 41
SAMPLE_S = 200e-6
"""A sample repeats a run until it lasts about so long: the clock's own cost is some 0.1 us."""
MOST_RUNS = 64


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of one run, weights hot in the cache where they fit."""

    chain_ms: float
    rule_ms: float


def time_both(bench: Bench) -> Times:
    """Medians of interleaved runs on normal values, launched as a forward launches a step."""
    bench.fill("normal")
    builtin = bench.candidate.builtin
    sides = [in_one_launch(builtin, side.launches) for side in (bench.chain, bench.rule)]
    for run in sides:
        run()
    runs = max(1, min(MOST_RUNS, int(SAMPLE_S / max(_seconds(sides[1], 1), 1e-7))))
    samples = [[_seconds(run, runs) for run in sides] for _ in range(SAMPLES)]
    chain, rule = (median(taken) * 1000 for taken in zip(*samples, strict=True))
    return Times(chain, rule)


def _seconds(run: Callable[[], None], times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - begin) / times
