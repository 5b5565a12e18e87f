"""Both sides' time, taken in turns, so that a slow moment of the machine falls on both."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from metpipe.engine.gpu import wait
from metpipe.engine.graphs import capture
from metpipe.engine.microtest.bench import Bench
from metpipe.engine.program import Launch
from metpipe.engine.runners import in_one_launch

__all__ = ["Times", "time_both"]

SAMPLES = 41
SAMPLE_S = 200e-6
"""A sample repeats a run until it lasts about so long: the clock's own cost is some 0.1 us."""
MOST_RUNS = 64
GRAPH_RUNS = 16
"""Runs of a captured sample: beside them the events' own cost is small."""
Clock = Callable[[], float]
"""Takes one sample: seconds of a run"""


@dataclass(frozen=True, slots=True)
class Times:
    """Medians of one run, weights hot in the cache where they fit."""

    chain_ms: float
    rule_ms: float


def time_both(bench: Bench) -> Times:
    """Medians of interleaved runs on normal values, launched as a forward launches a step.

    On a GPU that is a captured graph: one by one, the host's launches would be all that is timed.

    Raises:
        ConfigError: on a GPU, the rule's launches cannot be captured.
    """
    bench.fill("normal")
    builtin = bench.candidate.builtin
    sides = [in_one_launch(builtin, side.launches) for side in (bench.chain, bench.rule)]
    for run in sides:
        run()
    device = bench.candidate.device
    wait(device)
    clocks = _on_gpu(bench, sides) if device.type == "cuda" else _on_cpu(sides)
    samples = [[clock() for clock in clocks] for _ in range(SAMPLES)]
    chain, rule = (median(taken) * 1000 for taken in zip(*samples, strict=True))
    return Times(chain, rule)


def _on_cpu(sides: list[Launch]) -> list[Clock]:
    runs = max(1, min(MOST_RUNS, int(SAMPLE_S / max(_seconds(sides[1], 1), 1e-7))))
    return [partial(_seconds, run, runs) for run in sides]


def _seconds(run: Launch, times: int) -> float:
    begin = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - begin) / times


def _on_gpu(bench: Bench, sides: list[Launch]) -> list[Clock]:
    chain, rule = sides
    try:
        captured = [_captured(chain), _captured(rule)]
    except Exception as error:  # a user's kernel may be plain Python
        said = "could not be captured in a CUDA graph, in which it is timed"
        raise bench.failure(said, error) from error
    return [partial(_replayed_seconds, replay) for replay in captured]


def _captured(run: Launch) -> Launch:
    """Several runs as one graph, replayed once: the first replay is not like the others."""

    def several() -> None:
        for _ in range(GRAPH_RUNS):
            run()

    replay = capture(several)
    replay()
    torch.cuda.synchronize()
    return replay


def _replayed_seconds(replay: Launch) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000 / GRAPH_RUNS
