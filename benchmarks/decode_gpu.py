"""A decode step on a GPU at published shapes, as a share of the memory bandwidth read beside it.

`python -m benchmarks.decode_gpu [shape ...] [rows=1,4,16,64] [context=512,8192] [outside=true]`:
shapes are model choices (qwen3_0_6b, qwen3_8b), weights synthetic. Bits are compared before a time
is printed: legacy, circuit and both graphed, and rows of a batch with themselves alone. A step is
timed whole, the copy of its inputs to the GPU too: the mean of steps between two events, the median
of several such runs. Share = (weights and KV read) / time / read bandwidth.
outside: transformers eager (sdpa), and its static cache compiled with CUDA graphs, one row.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
import yaml

from metpipe.circuit import Select
from metpipe.engine.checkpoints import ModelSource, open_checkpoint
from metpipe.engine.forward import Forward
from metpipe.engine.gpu import find_gpu
from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.engine.model import Model
from metpipe.engine.opening import circuit_of, open_model, shapes_of_config
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.pools import Sequence
from metpipe.engine.selection import ForwardSelect
from metpipe.resources import conf_dir

SELECTS = {
    "legacy": ForwardSelect("legacy", "legacy", Select.reference()),
    "legacy, graphed": ForwardSelect("lg", "legacy", Select.reference(), graphs=True),
    "circuit": ForwardSelect("circuit", "circuit", Select.all()),
    "circuit, graphed": ForwardSelect("cg", "circuit", Select.all(), graphs=True),
}
BLOCK, STEPS, RUNS, CHECKED = 16, 24, 5, 3
READ_BYTES = 8 << 30


def main() -> None:
    """Print the bandwidth, then a line for each forward of each case."""
    asked = dict(item.split("=", 1) for item in sys.argv[1:] if "=" in item)
    shapes = [item for item in sys.argv[1:] if "=" not in item] or ["qwen3_0_6b", "qwen3_8b"]
    gpu = find_gpu()
    assert gpu is not None, "this benchmark needs an NVIDIA GPU"
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    print(f"{gpu.name}, torch {torch.__version__}, triton {triton.__version__}, CUDA {gpu.runtime}")
    print(f"read bandwidth {bandwidth / 1e9:.0f} GB/s")
    for shape in shapes:
        config = yaml.safe_load((conf_dir() / "model" / f"{shape}.yaml").read_text())["config"]
        for context in numbers(asked.get("context", "512,8192")):
            for rows in numbers(asked.get("rows", "1,4,16,64")):
                names = asked.get("forwards", ",".join(SELECTS)).replace("+", ", ").split(";")
                case = Case(shape, config, context, rows)
                run_case(case, bandwidth, None if "forwards" not in asked else names)
                torch.cuda.empty_cache()
        if asked.get("outside") == "true":
            try:
                outside(shape, config, numbers(asked.get("context", "512"))[0], bandwidth)
            except Exception as error:  # another library's: ours are still worth their lines
                print(f"{shape}: transformers failed: {str(error).splitlines()[:1]}", flush=True)


def numbers(text: str) -> list[int]:
    """`1,4,16`."""
    return [int(part) for part in text.split(",")]


@triton.jit
def _read(source, found, each, BLOCK: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * each
    total = tl.zeros((BLOCK,), tl.int32)
    for at in range(0, each, BLOCK):
        total = total ^ tl.load(source + start + at + tl.arange(0, BLOCK))
    tl.store(found + tl.program_id(0), tl.max(total))


def read_bandwidth() -> float:
    """Bytes a second of a kernel that only reads: the best of several grids, each a median."""
    source = torch.empty(READ_BYTES // 4, dtype=torch.int32, device="cuda")
    source.view(torch.float32).normal_()
    best = 0.0
    for programs in (132 * 8, 132 * 16, 132 * 32, 132 * 64):
        for block, warps in ((2048, 4), (4096, 8), (8192, 8)):
            found = torch.empty(programs, dtype=torch.int32, device="cuda")
            each = source.numel() // programs // block * block
            arguments = (source, found, each, block)
            call = partial(_read[(programs,)], *arguments, num_warps=warps)
            seconds = statistics.median(measured(call, 1) for _ in range(5))
            best = max(best, 4 * each * programs / seconds)
    return best


def measured(call: Callable[[], object], times: int) -> float:
    """Seconds of one of `times` calls, between two events."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


@dataclass(frozen=True)
class Case:
    """A shape, the tokens that every row attends to, and the rows."""

    shape: str
    config: Mapping[str, Any]
    context: int
    rows: int


class OnDevice:
    """A synthetic checkpoint whose values are drawn on the GPU."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        source = ModelSource(name="synthetic", config=dict(config))
        self._base = open_checkpoint(source, shapes_of=shapes_of_config)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def read(self, name: str) -> torch.Tensor:
        """Normal values that keep the stream's size."""
        shape = self._base.tensors[name]
        drawn = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        return drawn.mul_(0.2).add_(1.0) if len(shape) == 1 else drawn.mul_(shape[-1] ** -0.5)


def opened(case: Case) -> Model:
    """The model with room for the case; its caches hold values, not NaN."""
    torch.manual_seed(0)
    longest = case.context + STEPS * (RUNS + 2) + CHECKED + 2
    each = -(-longest // BLOCK) + 1
    mode = "decode" if case.rows == 1 else "multi_seq"
    sizes = PoolSizes(
        num_blocks=case.rows * each + 1,
        num_slots=case.rows,
        block_size=BLOCK,
        max_seq_len=longest,
        max_prefill_rows=1,
        runs=(("decode", 1), ("prefill", 1), *(((mode, case.rows),) if case.rows > 1 else ())),
        snapshot_rows=0,
    )
    checkpoint: Any = OnDevice(case.config)
    circuit = circuit_of(case.config, case.shape)
    model = open_model(checkpoint, circuit, open_kernel_sets("cuda", None), sizes)
    for pool in model.states.values():
        pool.normal_()
    return model


def sequences(model: Model, case: Case) -> list[Sequence]:
    """The case's sequences at its context, with blocks for all that will be decoded."""
    found = [model.open(reserve=model.sizes.max_seq_len) for _ in range(case.rows)]
    for one in found:
        one.length = case.context
    return found


def step(forward: Forward, batch: list[Sequence], tokens: list[int]) -> torch.Tensor:
    """One token more of each."""
    if len(batch) == 1:
        return forward.decode(batch[0], tokens[0])[None]
    return forward.decode_batch(batch, tokens, padded=False)


def check_bits(model: Model, forwards: Mapping[str, Forward], case: Case) -> None:
    """Every forward against the first, and rows of the batch against themselves alone."""
    batch = sequences(model, case)
    tokens = [(7919 * row + 5) % model.vocab_size for row in range(case.rows)]
    found = {}
    for name, forward in forwards.items():
        for one in batch:
            one.length = case.context
        steps = [step(forward, batch, tokens).clone() for _ in range(CHECKED)]
        found[name] = torch.stack(steps).view(torch.int16)
    first = next(iter(found.values()))
    if not bool(first.view(torch.bfloat16).isfinite().all()):
        raise SystemExit(f"{case.shape}: logits are not finite")
    for name, logits in found.items():
        if not torch.equal(logits, first):
            raise SystemExit(f"{case.shape}, {case.rows} rows: {name} has other bits; no times")
    alone = next(iter(forwards.values()))
    for row in {0, case.rows // 2, case.rows - 1} if case.rows > 1 else ():
        batch[row].length = case.context
        for at in range(CHECKED):
            logits = alone.decode(batch[row], tokens[row]).view(torch.int16)
            if not torch.equal(logits, first[at, row]):
                raise SystemExit(f"{case.shape}: row {row} of {case.rows} has other bits alone")
    for one in reversed(batch):
        model.close(one)


def step_bytes(model: Model, case: Case) -> int:
    """Weights and KV that a step reads: an embedding table that is no head is not read whole."""
    weights = model.allocator.bytes_by_tag()["weights"]
    if not case.config.get("tie_word_embeddings", False):
        weights -= 2 * model.circuit.dims["vocab"] * model.circuit.dims["hidden"]
    kv = sum(2 * pool.shape[1] for pool in model.states.values())
    return weights + kv * case.context * case.rows


def run_case(case: Case, bandwidth: float, names: list[str] | None) -> None:
    """Check the bits, then time every forward."""
    model = opened(case)
    forwards = {
        name: model.forward(select)
        for name, select in SELECTS.items()
        if names is None or name in names
    }
    check_bits(model, forwards, case)
    read = step_bytes(model, case)
    for name, forward in forwards.items():
        seconds = statistics.median(timed(model, forward, case))
        share = read / seconds / bandwidth
        launches = sum(forward.disclose().launches.values()) // sum(
            forward.disclose().steps.values()
        )
        print(
            f"{case.shape:<11} context {case.context:>5} rows {case.rows:>3} {name:<17} "
            f"{seconds * 1e3:8.3f} ms {share:6.1%} {launches:>4} launches",
            flush=True,
        )
        forward.close()


def timed(model: Model, forward: Forward, case: Case) -> Iterator[float]:
    """Seconds a step, of each run; the first run is for warming up."""
    batch = sequences(model, case)
    tokens = [(7919 * row + 5) % model.vocab_size for row in range(case.rows)]
    for _ in range(STEPS):
        step(forward, batch, tokens)
    for _ in range(RUNS):
        yield measured(lambda: step(forward, batch, tokens), STEPS)
    for one in reversed(batch):
        model.close(one)


@torch.inference_mode()
def outside(shape: str, config: Mapping[str, Any], context: int, bandwidth: float) -> None:
    """Time transformers on the same shape, one row: eager, then its static cache compiled."""
    import transformers

    transformers.logging.set_verbosity_error()
    made = transformers.AutoConfig.for_model(**dict(config))
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            made, dtype=torch.bfloat16, attn_implementation="sdpa"
        ).eval()
    read = sum(p.numel() * 2 for p in model.parameters())
    if not config.get("tie_word_embeddings", False):
        read -= model.get_input_embeddings().weight.numel() * 2
    kv_dim = made.num_key_value_heads * made.head_dim
    read += 4 * kv_dim * made.num_hidden_layers * context
    prompt = torch.randint(0, made.vocab_size, (1, context), device="cuda")
    token = prompt[:, :1].clone()

    def line(name: str, seconds: float) -> None:
        print(
            f"{shape:<11} context {context:>5} rows   1 {name:<17} {seconds * 1e3:8.3f} ms "
            f"{read / seconds / bandwidth:6.1%}",
            flush=True,
        )

    cache = model(prompt, use_cache=True).past_key_values
    for _ in range(3):
        model(token, past_key_values=cache, use_cache=True)
    eager = [
        measured(lambda: model(token, past_key_values=cache, use_cache=True), 8) for _ in range(3)
    ]
    line(f"transformers {transformers.__version__} eager", statistics.median(eager))
    static = transformers.StaticCache(config=made, max_cache_len=context + 256)
    model(prompt, past_key_values=static, use_cache=True)
    compiled = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    place = torch.tensor([context], device="cuda")

    def one() -> None:
        compiled(token, past_key_values=static, use_cache=True, cache_position=place)

    for _ in range(4):
        one()
    times = [measured(one, 8) for _ in range(RUNS)]
    line("its static cache, compiled", statistics.median(times))


if __name__ == "__main__":
    assert Path("benchmarks").is_dir(), "run it from the repository's root"
    main()
