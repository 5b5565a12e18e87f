"""How fast serves of met's engine are planned: points a second and milliseconds an inverse query.

Run it with `python benchmarks/met_points.py [model choice]` (qwen3_8_27b_nvfp4, on gb10). Each
figure is a median of runs; each run starts from a model whose row buckets are planned and nothing
else; `cold` is the same question to a model that nothing is planned of. Reach: 1000 points a
second, 50 ms a query.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from metpipe.config import Provenance, validate
from metpipe.memory import Point, Workload, answered, evaluate
from metpipe.memory.evaluate import answer_at
from metpipe.memory.queries import QUERIES
from metpipe.resources import conf_dir
from metpipe.stages.live import Live
from metpipe.stages.met_plan import met_point
from metpipe.stages.planned_model import PLANNED

SERVE = (
    "serve.max_seq_len=32768",
    "serve.max_batch_size=32",
    "serve.weight_quantization=nvfp4",
    "serve.lm_head_dtype=bf16",
    "serve.mtp_quantization=bf16",
    "serve.speculative=true",
    "serve.num_drafts=3",
    "serve.enable_prefix_caching=true",
    "serve.ssm_cache_slots=64",
)
RUNS = 5
POINTS = 1000
TIGHT_BYTES = 112 * 2**30
"""A device on which the answers lie inside their ranges, so that the bisections run to the end."""


def main() -> None:
    """Print the figures."""
    choice = (*sys.argv[1:], "qwen3_8_27b_nvfp4")[0]
    first = prepared(choice)
    nodes = len(first.planned.circuit.nodes)
    print(f"{choice} on {first.device.id}, {nodes} nodes, medians of {RUNS} runs")
    for name, work in (
        ("points, the same load", lambda point: [evaluate(point) for _ in range(POINTS)]),
        ("points, random loads", lambda point: [evaluate(one) for one in loads(point)]),
        ("answers, random loads", lambda point: [answer_at(one) for one in loads(point)]),
    ):
        seconds = timed(lambda: warmed(choice), work)
        print(f"{name:<32} {POINTS / seconds:10.0f} /s")
    for query in QUERIES:
        seconds = timed(
            lambda: tight(warmed(choice)), lambda point, query=query: answered(query(point))
        )
        cold = timed(
            lambda: tight(prepared(choice)), lambda point, query=query: answered(query(point))
        )
        print(f"{query(first).query:<32} {seconds * 1e3:10.2f} ms, cold {cold * 1e3:8.2f} ms")


def prepared(choice: str) -> Point:
    """The point of a command line, nothing of it planned before."""
    PLANNED.clear()
    with initialize_config_dir(config_dir=str(conf_dir()), version_base=None):
        line = ("pipeline=memory", "memory.accounting=met", "hardware=gb10", f"model={choice}")
        plain = OmegaConf.to_container(compose("config", overrides=[*line, *SERVE]), resolve=True)
    run = validate(cast("dict[str, Any]", plain), Provenance((), {}))
    return met_point(Live(run, cast("Any", None)))


def warmed(choice: str) -> Point:
    """The same with its row buckets planned."""
    point = prepared(choice)
    for concurrency in (1, 8, 32):
        for isl in (1, 64, 4096):
            evaluate(at(point, concurrency, isl))
    return point


def timed(prepare: Callable[[], Point], work: Callable[[Point], object]) -> float:
    """Median seconds of the work, each run on a point of its own."""
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


def loads(point: Point) -> list[Point]:
    """Loads that hardly repeat a prefill's row count, so that most need an arena of their own."""
    draw = random.Random(0)
    return [at(point, draw.randint(1, 32), draw.randint(1, 8192)) for _ in range(POINTS)]


if __name__ == "__main__":
    main()
