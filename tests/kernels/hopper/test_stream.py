"""Streamed linears: the bits of the tiles that they stand for, whatever the stream."""

from __future__ import annotations

import sys

import pytest
import torch

from tests.kernels.cpu.values import make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
KINDS = ("cancelling", "mixed_exponents")
STREAMS = [
    (64, 256, 3, True), (64, 128, 3, True), (64, 64, 4, True), (128, 64, 3, True),
    (16, 256, 4, False), (32, 128, 4, False), (64, 128, 2, False),
]  # fmt: skip


def module():
    return sys.modules["metpipe_kernels.hopper.stream"]


def results(gpu, kind, rows, n, k) -> list[torch.Tensor]:
    """One of every form of linear: alone, with bias, added, three at once, activated."""
    x, weight = (
        make(kind, 1, rows, k),
        make("paired" if kind == "cancelling" else "normal", 2, n, k),
    )
    bias, stream = make("normal", 3, n), make("normal", 4, rows, n)
    function = gpu.functions["linear.linear"]
    found = [
        launched(function, {"y": Out(rows, n)}, x=x, weight=weight, bias=each)["y"]
        for each in (None, bias)
    ]
    found.append(
        launched(
            gpu.functions["linear.linear_add"], {"y": Out(rows, n)},
            x=x, weight=weight, bias=bias, stream=stream,
        )["y"]
    )  # fmt: skip
    sizes = {"q": n, "k": n // 2, "v": n // 2}
    three = launched(
        gpu.functions["linear.qkv"],
        {name: Out(rows, size) for name, size in sizes.items()},
        x=x,
        **{f"{name}_weight": weight[:size].clone() for name, size in sizes.items()},
        **{f"{name}_bias": bias[:size].clone() for name, size in sizes.items()},
    )
    found += [three[name] for name in sizes]
    found.append(
        launched(
            gpu.functions["linear.gate_up_silu"], {"y": Out(rows, n // 2)},
            x=x, weight=weight, bias=bias,
        )["y"]
    )  # fmt: skip
    gates = launched(
        gpu.functions["gates.linear_gates"],
        {name: Out(rows, n // 2, dtype=torch.float32) for name in ("decay", "beta")},
        x=x, weight=weight, a_log=bias[: n // 2].clone(), dt_bias=bias[n // 2 :].clone(),
    )  # fmt: skip
    return [*found, gates["decay"], gates["beta"]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", (1, 9, 16))
@pytest.mark.parametrize(("n", "k"), [(1024, 1024), (8000, 512), (74, 256)])
def test_every_stream_has_the_bits_of_the_tiles(gpu, monkeypatch, kind, rows, n, k):
    monkeypatch.setattr(module(), "stream_for", lambda rows, n, k, paired: None)
    tiled = results(gpu, kind, rows, n, k)
    for outputs, step, stages, warpgroup in STREAMS:
        stream = module().Stream(outputs, step, stages, warpgroup)
        monkeypatch.setattr(module(), "stream_for", lambda rows, n, k, paired, found=stream: found)
        for index, (ours, theirs) in enumerate(
            zip(results(gpu, kind, rows, n, k), tiled, strict=True)
        ):
            assert same(ours, theirs), (stream, index)


def test_small_linears_stream_and_odd_ones_do_not():
    stream_for = module().stream_for
    assert stream_for(1, 4096, 4096, paired=False) is not None
    assert stream_for(1, 100, 1000, paired=False) is None
    assert stream_for(1, 151936, 4096, paired=False) is None
