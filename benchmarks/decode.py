"""A decode step on a GPU at published shapes, as a share of the memory bandwidth read beside it.

`python -m benchmarks.decode [shape ...] [rows=1,4,16,64] [context=512,8192] [forwards=NAME;NAME]
[without=RULE,RULE] [outside=true]`: shapes are qwen3_0_6b, qwen3_8b, hybrid_27b and moe_35b_a3b,
weights synthetic, in bf16, without draft heads. Bits are compared before a time is printed: every
forward with the first (legacy, unless `forwards` says otherwise), and rows of a batch with
themselves alone. A step is timed whole, the copy of its inputs to the GPU too: the mean of steps
between two events, the median of several such runs. Share = (weights, KV and states read) / time /
read bandwidth; of experts the number that evenly routed rows are expected to meet.
`by_rows` is the circuit with the rules that are fastest for few rows: its bits may differ.
without: the circuit, graphed, but for each of these rules, one after the other.
outside: transformers eager (sdpa), and its static cache compiled with CUDA graphs, one row.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import yaml

from benchmarks.clock import measured, read_bandwidth
from benchmarks.outside import outside
from metpipe.circuit import Circuit, Node, Select, node_weight_shapes
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
    "by_rows, graphed": ForwardSelect(
        "bg", "circuit", Select.all(), levers=frozenset({"by_rows"}), graphs=True
    ),
}
FREE = frozenset({"by_rows, graphed"})
"""forwards whose bits may differ from the others'"""
SHAPES = {
    "qwen3_0_6b": "qwen3_0_6b",
    "qwen3_8b": "qwen3_8b",
    "hybrid_27b": "qwen3_8_27b_nvfp4",
    "moe_35b_a3b": "qwen3_6_35b_a3b",
}
"""name -> the model choice whose config it is"""
BLOCK, STEPS, RUNS, CHECKED = 16, 24, 5, 3


def main() -> None:
    """Print the bandwidth, then a line for each forward of each case."""
    asked = dict(item.split("=", 1) for item in sys.argv[1:] if "=" in item)
    shapes = [item for item in sys.argv[1:] if "=" not in item] or list(SHAPES)
    gpu = find_gpu()
    assert gpu is not None, "this benchmark needs an NVIDIA GPU"
    bandwidth = read_bandwidth()
    torch.cuda.empty_cache()
    print(f"{gpu.name}, torch {torch.__version__}, triton {triton.__version__}, CUDA {gpu.runtime}")
    print(f"read bandwidth {bandwidth / 1e9:.0f} GB/s")
    for shape in shapes:
        config = config_of(shape)
        for context in numbers(asked.get("context", "512,8192")):
            for rows in numbers(asked.get("rows", "1,4,16,64")):
                names = asked.get("forwards", ";".join(SELECTS)).replace("+", ", ").split(";")
                case = Case(shape, config, context, rows)
                chosen = {name: SELECTS[name] for name in names}
                run_case(case, bandwidth, chosen | without(asked.get("without", "")))
                torch.cuda.empty_cache()
        if asked.get("outside") == "true":
            try:
                outside(shape, config, numbers(asked.get("context", "512"))[0], bandwidth)
            except Exception as error:  # another library's: ours are still worth their lines
                print(f"{shape}: transformers failed: {str(error).splitlines()[:1]}", flush=True)


def config_of(shape: str) -> dict[str, Any]:
    """The shape's config in bf16, without a draft head."""
    path = conf_dir() / "model" / f"{SHAPES[shape]}.yaml"
    whole = dict(yaml.safe_load(path.read_text())["config"])
    whole.pop("quantization_config", None)
    if "text_config" in whole:
        whole["text_config"] = {**whole["text_config"], "mtp_num_hidden_layers": 0}
    return whole


def without(rules: str) -> dict[str, ForwardSelect]:
    """`add_rms_norm,qkv`: a graphed circuit without the first rule, and one without the next."""
    return {
        f"but {rule}": ForwardSelect(f"but_{rule}", "circuit", Select.without([rule]), graphs=True)
        for rule in filter(None, rules.split(","))
    }


def numbers(text: str) -> list[int]:
    """`1,4,16`."""
    return [int(part) for part in text.split(",")]


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
    recurrent = [name for name, state in model.circuit.states.items() if state.kind == "recurrent"]
    before = {name: model.states[name].clone() for name in recurrent}

    def again() -> None:
        for one in batch:
            one.length = case.context
        for name, state in before.items():
            model.states[name].copy_(state)

    found = {}
    for name, forward in forwards.items():
        again()
        steps = [step(forward, batch, tokens).clone() for _ in range(CHECKED)]
        found[name] = torch.stack(steps).view(torch.int16)
    first = next(iter(found.values()))
    if not bool(first.view(torch.bfloat16).isfinite().all()):
        raise SystemExit(f"{case.shape}: logits are not finite")
    for name, logits in found.items():
        if name not in FREE and not torch.equal(logits, first):
            raise SystemExit(f"{case.shape}, {case.rows} rows: {name} has other bits; no times")
    alone = next(iter(forwards.values()))
    for row in {0, case.rows // 2, case.rows - 1} if case.rows > 1 else ():
        again()
        for at in range(CHECKED):
            logits = alone.decode(batch[row], tokens[row]).view(torch.int16)
            if not torch.equal(logits, first[at, row]):
                raise SystemExit(f"{case.shape}: row {row} of {case.rows} has other bits alone")
    again()
    for one in reversed(batch):
        model.close(one)


def step_bytes(model: Model, case: Case) -> int:
    """Weights, KV and states that a step reads."""
    circuit = model.circuit
    read = sum(node_bytes(circuit, node, case.rows) for node in circuit.nodes)
    for state in circuit.states.values():
        each = 2 * case.context if state.kind == "paged_kv" else 4
        read += case.rows * each * state.elements
    return read


def node_bytes(circuit: Circuit, node: Node, rows: int) -> int:
    """What a node reads of the checkpoint in a step; an embedding its rows only."""
    if node.op == "embed":
        return 2 * rows * circuit.dims["hidden"]
    values = sum(math.prod(shape) for _, shape in node_weight_shapes(circuit, node))
    if node.op in ("expert_gate_up", "expert_down"):
        missed = (1 - circuit.dims["top_k"] / circuit.dims["experts"]) ** rows
        return round(2 * values * (1 - missed))
    return 2 * values


def run_case(case: Case, bandwidth: float, chosen: Mapping[str, ForwardSelect]) -> None:
    """Check the bits, then time every forward."""
    model = opened(case)
    forwards = {name: model.forward(select) for name, select in chosen.items()}
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


if __name__ == "__main__":
    assert Path("benchmarks").is_dir(), "run it from the repository's root"
    main()
