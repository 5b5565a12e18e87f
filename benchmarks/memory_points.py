"""How fast serves are planned: points a second and milliseconds an inverse query, Qwen3-8B.

Run it with `python benchmarks/memory_points.py [device]` (b200). Each figure is a median of runs;
each run starts from a model whose row buckets are planned and nothing else, unless it says so.
Reach: 1000 points a second, 50 ms a query.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from metpipe.circuit import Select, circuit_from_config
from metpipe.memory import (
    Device,
    Planned,
    Point,
    Serve,
    Workload,
    evaluate,
    find_device,
    max_concurrency,
    max_isl,
    read_devices,
    read_kernel_set,
)
from metpipe.resources import kernels_dir

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "hidden_act": "silu",
    "attention_bias": False,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SERVE = Serve(
    max_seq_len=40960,
    max_batch_size=128,
    gpu_memory_utilization=0.9,
    kv_cache_dtype="bf16",
    ssm_h_dtype="f32",
    block_size=16,
    max_prefill_tokens=8192,
)
RUNS = 5
POINTS = 1000
TIGHT_BYTES = 48 * 2**30
"""A device on which the answers lie inside their ranges, so that the bisections run to the end."""


def main() -> None:
    """Print the figures."""
    device = find_device(read_devices(kernels_dir() / "DEVICES.toml"), (*sys.argv[1:], "b200")[0])
    circuit = circuit_from_config(QWEN3_8B, kernels_dir())
    kernel_set = read_kernel_set(kernels_dir() / "cpu")

    def unplanned() -> Point:
        planned = Planned(circuit, kernel_set, Select.all())
        return Point(planned, device, SERVE, Workload(isl=4096, osl=1024, concurrency=8))

    def planned() -> Point:
        point = unplanned()
        for concurrency in (1, 8):
            for isl in (1, 64, 4096):
                evaluate(at(point, concurrency, isl))
        return point

    print(f"Qwen3-8B on {device.id}, {len(circuit.nodes)} nodes, medians of {RUNS} runs")
    first = timed(unplanned, evaluate)
    print(f"first point, its plans fused     {first * 1e3:10.2f} ms")
    again = timed(planned, lambda point: [evaluate(point) for _ in range(POINTS)])
    print(f"points, the same load            {POINTS / again:10.0f} /s")
    mixed = timed(planned, lambda point: [evaluate(one) for one in random_loads(point)])
    print(f"points, random loads             {POINTS / mixed:10.0f} /s")
    for query in (max_concurrency, max_isl):
        seconds = timed(lambda: replace(planned(), device=tight(device)), query)
        print(f"{query.__name__:<16}                 {seconds * 1e3:10.2f} ms")


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


def tight(device: Device) -> Device:
    """The device with less memory."""
    return replace(device, memory_bytes=TIGHT_BYTES)


def random_loads(point: Point) -> list[Point]:
    """Loads that hardly repeat a prefill's row count, so that most need an arena of their own."""
    draw = random.Random(0)
    return [at(point, draw.randint(1, 128), draw.randint(1, 8192)) for _ in range(POINTS)]


if __name__ == "__main__":
    main()
