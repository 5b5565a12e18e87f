"""How fast serves are planned: points a second, a grid, and milliseconds an inverse query.

Run it with `python benchmarks/memory_points.py [device] [model choice]` (b200, qwen3_8_27b_nvfp4).
Each figure is a median of runs; each run starts from a model whose row buckets are planned and
nothing else; `cold` is the same question to a model that nothing is planned of. Reach: 1000 points
a second, 50 ms a query, a grid of 10,000 loads in 20 s.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import yaml

from metpipe.circuit import Select, circuit_from_config
from metpipe.memory import (
    Planned,
    Point,
    Question,
    Serve,
    Workload,
    answered,
    evaluate,
    find_device,
    read_devices,
    read_kernel_set,
)
from metpipe.memory.grid import Loads, grid_of
from metpipe.memory.queries import QUERIES, device_question
from metpipe.resources import conf_dir, kernels_dir

SERVE = Serve(
    max_seq_len=40960,
    max_batch_size=128,
    gpu_memory_utilization=0.9,
    kv_cache_dtype="bf16",
    ssm_h_dtype="f32",
    block_size=16,
    max_prefill_tokens=8192,
)
Given = TypeVar("Given")
RUNS = 5
POINTS = 1000
TIGHT_BYTES = 48 * 2**30
"""A device on which the answers lie inside their ranges, so that the bisections run to the end."""


def main() -> None:
    """Print the figures."""
    device_id, choice = (*sys.argv[1:], *("b200", "qwen3_8_27b_nvfp4")[len(sys.argv) - 1 :])
    devices = read_devices(kernels_dir() / "DEVICES.toml")
    device = find_device(devices, device_id)
    config = yaml.safe_load((conf_dir() / "model" / f"{choice}.yaml").read_text())["config"]
    circuit = circuit_from_config(config, kernels_dir())
    kernel_set = read_kernel_set(kernels_dir() / "cpu")

    def unplanned() -> Point:
        planned = Planned(circuit, kernel_set, Select.all())
        return Point(planned, device, SERVE, Workload(isl=4096, osl=1024, concurrency=8))

    def planned() -> Point:
        return warmed(unplanned())

    print(f"{choice} on {device.id}, {len(circuit.nodes)} nodes, medians of {RUNS} runs")
    first = timed(unplanned, evaluate)
    print(f"first point, its plans fused     {first * 1e3:10.2f} ms")
    again = timed(planned, lambda point: [evaluate(point) for _ in range(POINTS)])
    print(f"points, the same load            {POINTS / again:10.0f} /s")
    mixed = timed(planned, lambda point: [evaluate(one) for one in random_loads(point)])
    print(f"points, random loads             {POINTS / mixed:10.0f} /s")

    loads = Loads(tuple(range(64, 6464, 64)), (1024,), tuple(range(1, 101)))
    grid = timed(planned, lambda point: list(grid_of(point, loads)))
    print(f"grid of {len(loads)} loads             {grid:10.2f} s")

    gpus = [one for one in devices.by_id.values() if one.kind == "gpu"]

    def to_device(point: Point) -> Question:
        return device_question(point, [replace(point, device=one) for one in gpus])

    for query in (*QUERIES, to_device):
        show(query, lambda: tight(planned()), lambda: tight(unplanned()))


def warmed(point: Point) -> Point:
    """The point, with the row buckets of its model planned."""
    for concurrency in (1, 8):
        for isl in (1, 64, 4096):
            evaluate(at(point, concurrency, isl))
    for width in (2, 8) if point.has_draft_head else ():
        serve = replace(point.serve, speculative=True, num_drafts=width - 1)
        evaluate(replace(point, serve=serve))
    return point


def show(
    query: Callable[[Point], Question], warm: Callable[[], Point], cold: Callable[[], Point]
) -> None:
    """One query's line: warm, and as the first question to its model."""
    question = query(warm())
    if question.why:
        print(f"{question.query:<32} not asked: {question.why}")
        return
    seconds = timed(warm, lambda point: answered(query(point)))
    first = timed(cold, lambda point: answered(query(point)))
    print(f"{question.query:<32} {seconds * 1e3:10.2f} ms, cold {first * 1e3:8.2f} ms")


def timed(prepare: Callable[[], Given], work: Callable[[Given], object]) -> float:
    """Median seconds of the work, each run on something of its own."""
    seconds = []
    for _ in range(RUNS):
        point = prepare()
        start = time.perf_counter()
        work(point)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def at(point: Point, concurrency: int, isl: int) -> Point:
    """The point at another load."""
    return replace(point, workload=Workload(isl, point.workload.osl, concurrency))


def tight(point: Point) -> Point:
    """The point on a device of less memory."""
    return replace(point, device=replace(point.device, memory_bytes=TIGHT_BYTES))


def random_loads(point: Point) -> list[Point]:
    """Loads that hardly repeat a prefill's row count, so that most need an arena of their own."""
    draw = random.Random(0)
    return [at(point, draw.randint(1, 128), draw.randint(1, 8192)) for _ in range(POINTS)]


if __name__ == "__main__":
    main()
