"""The prefill of a gated delta layer on a GPU: row by row as decode does it, and in chunks.

`python -m benchmarks.prefill_gdn [rows=64,256,1024,4096] [warps=4]`: at the sizes of Qwen3.8-27B,
with the gated norm behind it, as plans run them: one fused launch, and two. Before a time is
printed, the chunked kernel must be near the other one, repeat its own bits, and have them when the
rows come in two calls that are cut at a multiple of 64. Times are means of calls between two
events, the median of several such runs. `warps` tries the chunked kernel with other numbers of
warps than its own.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import yaml

from benchmarks.clock import measured
from metpipe.engine.kernel_set import load_kernel_set
from metpipe.resources import conf_dir, kernels_dir

MODEL = "qwen3_8_27b_nvfp4"
PACKAGE = "metpipe_kernels.hopper"
ROWS = (64, 256, 1024, 4096)
RUNS, SECONDS = 5, 0.2
NEAR = 1e-5
"""Of the size of all values: both sum hundreds of products, in float32 and in three of TF32."""
SLOTS = 2

Tensors = dict[str, torch.Tensor]


def main() -> None:
    """Prints a line for each row count."""
    options = dict(text.split("=") for text in sys.argv[1:])
    if unknown := options.keys() - {"rows", "warps"}:
        raise SystemExit(f"no option {min(unknown)!r}: rows=N,.. and warps=N,.. are")
    rows_of = _numbers(options.get("rows")) or ROWS
    kernels = load_kernel_set(kernels_dir() / "hopper", package=PACKAGE, on=PACKAGE)
    chunked = sys.modules[f"{PACKAGE}.chunked"]
    layer = Layer(yaml.safe_load((conf_dir() / "model" / f"{MODEL}.yaml").read_text()))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: {layer}")
    print(f"{'rows':>5} {'warps':>5} {'recurrence ms':>14} {'chunked ms':>11} {'ratio':>6}")
    for rows in rows_of:
        for warps in _numbers(options.get("warps")) or (chunked.WARPS,):
            chunked.WARPS = warps
            _check(kernels.functions, layer, rows)
            before, after = (
                _milliseconds(calls)
                for calls in (
                    _row_by_row(kernels.functions, layer, rows),
                    _in_chunks(kernels.functions, layer, rows),
                )
            )
            print(f"{rows:>5} {warps:>5} {before:>14.3f} {after:>11.3f} {before / after:>6.2f}")


class Layer:
    """Sizes of a gated delta layer, and random rows of it."""

    def __init__(self, choice: Mapping[str, Any]) -> None:
        config = choice["config"]["text_config"]
        self.k_heads, self.heads = (config[f"linear_num_{name}_heads"] for name in ("key", "value"))
        self.dk, self.dv = (config[f"linear_{name}_head_dim"] for name in ("key", "value"))
        self.eps = config["rms_norm_eps"]

    def __str__(self) -> str:
        """`16 heads of k, ...`."""
        return f"{self.k_heads} heads of k, {self.heads} of v, dims {self.dk} and {self.dv}"

    def rows(self, count: int) -> dict[str, Any]:
        """The arguments of both kernels; q and k have length 1, as their norm leaves them."""
        seed = torch.Generator("cuda").manual_seed(1)
        keys = 2 * self.k_heads * self.dk
        qkv = torch.randn(count, keys + self.values, generator=seed, device="cuda")
        both = qkv[:, :keys].view(count, 2 * self.k_heads, self.dk)
        both /= both.norm(dim=-1, keepdim=True)
        uniform = torch.rand(2, count, self.heads, generator=seed, device="cuda")
        return {
            "qkv": qkv, "decay": -0.2 * uniform[0], "beta": uniform[1].clone(),
            "slots": torch.zeros(count, dtype=torch.int32, device="cuda"),
            "k_heads": self.k_heads, "k_dim": self.dk, "scale": self.dk**-0.5,
        }  # fmt: skip

    @property
    def values(self) -> int:
        """Columns of v, and of what comes out."""
        return self.heads * self.dv

    def states(self) -> torch.Tensor:
        """Fresh states, all alike."""
        seed = torch.Generator("cuda").manual_seed(2)
        size = self.values * self.dk
        return torch.randn(SLOTS, size, generator=seed, device="cuda")

    def out(self, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """An output that nobody wrote."""
        return torch.full((count, self.values), float("nan"), dtype=dtype, device="cuda")

    def gated(self, count: int) -> dict[str, Any]:
        """What the norm behind it takes beside."""
        seed = torch.Generator("cuda").manual_seed(3)
        gate = torch.randn(count, self.values, generator=seed, device="cuda").bfloat16()
        weight = torch.ones(self.dv, dtype=torch.bfloat16, device="cuda")
        return {"weight": weight, "gate": gate, "gate_offset": 0, "eps": self.eps}


def _no_steps(layer: Layer, count: int) -> Tensors:
    """No row leaves its state behind."""
    steps = torch.empty(0, layer.values * layer.dk, device="cuda")
    return {"steps": steps, "step_rows": torch.full((count,), -1, dtype=torch.int32, device="cuda")}


def _row_by_row(functions: Mapping[str, Any], layer: Layer, count: int) -> list[Callable[[], None]]:
    fused = functions["delta.recurrence_norm"]
    out = layer.out(count, torch.bfloat16)
    given = layer.rows(count) | layer.gated(count) | _no_steps(layer, count)
    return [fused(**given, h=layer.states(), y=out)]


def _in_chunks(functions: Mapping[str, Any], layer: Layer, count: int) -> list[Callable[[], None]]:
    core, out = layer.out(count), layer.out(count, torch.bfloat16)
    return [
        functions["chunked.gdn_chunked"](**layer.rows(count), h=layer.states(), y=core),
        functions["gated_norm.gated_rms_norm"](x=core, y=out, **layer.gated(count)),
    ]


def _milliseconds(calls: Sequence[Callable[[], None]]) -> float:
    """Of the calls one after the other."""

    def together() -> None:
        for call in calls:
            call()

    together()
    times = max(3, min(1000, int(SECONDS / measured(together, 2))))
    return 1e3 * statistics.median(measured(together, times) for _ in range(RUNS))


def _check(functions: Mapping[str, Any], layer: Layer, count: int) -> None:
    """Refuse to time a kernel that is wrong."""
    given = layer.rows(count)
    wanted, states = layer.out(count), layer.states()
    functions["delta.gdn_recurrence"](**given, **_no_steps(layer, count), h=states, y=wanted)()
    found = _chunked(functions, layer, given, (count,))
    for ours, theirs in zip(found, (wanted, states), strict=True):
        if not bool((ours - theirs).norm() <= NEAR * theirs.norm()):
            raise SystemExit(f"{count} rows: chunks are not near the recurrence: no time for that")
    cut = max(64, count // 128 * 64)
    for pieces in ((count,), (cut, count - cut) if count > cut else (count,)):
        again = _chunked(functions, layer, given, pieces)
        if not all(torch.equal(*pair) for pair in zip(found, again, strict=True)):
            raise SystemExit(f"{count} rows, as {pieces}: other bits: no time for that")


def _chunked(
    functions: Mapping[str, Any], layer: Layer, given: Mapping[str, Any], pieces: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Y and the states behind the rows, which come in calls of so many."""
    states, parts, start = layer.states(), [], 0
    for count in pieces:
        some = {
            name: value[start : start + count].clone() if isinstance(value, torch.Tensor) else value
            for name, value in given.items()
        }
        parts.append(layer.out(count))
        functions["chunked.gdn_chunked"](**some, h=states, y=parts[-1])()
        torch.cuda.synchronize()
        start += count
    return torch.cat(parts), states


def _numbers(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",")) if text else ()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
