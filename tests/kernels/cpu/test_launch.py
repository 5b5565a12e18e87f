"""Binding refuses what would crash, and a launch allocates nothing and keeps its tensors alive."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.kernels.cpu.cache_of import Cache
from tests.kernels.cpu.values import guarded, make, same_bits


def norm(cpu, **changed):
    inputs = {
        "x": make("normal", 1, 3, 64),
        "weight": make("normal", 2, 64),
        "y": guarded(3, 64).tensor,
        "eps": 1e-6,
    }
    return cpu.functions["norm.rms_norm"](**inputs | changed)


@pytest.mark.parametrize(
    ("changed", "says"),
    (
        ({"y": torch.zeros(3, 64)}, "y is torch.float32"),
        ({"y": torch.zeros(2, 64, dtype=torch.bfloat16)}, r"y is .*\(2, 64\).* \(3, 64\)"),
        ({"y": torch.zeros(3, 128, dtype=torch.bfloat16)[:, ::2]}, "strides"),
        ({"weight": torch.zeros(65, dtype=torch.bfloat16)}, "weight is"),
        ({"x": torch.zeros(64, dtype=torch.bfloat16)}, r"x has shape \(64,\)"),
    ),
    ids=("dtype", "rows", "strided", "dim", "one dimension"),
)
def test_a_wrong_tensor_is_refused(cpu, changed, says):
    with pytest.raises(ValueError, match=says):
        norm(cpu, **changed)


def test_an_output_over_an_input_is_refused(cpu):
    both = make("normal", 1, 6, 64)
    with pytest.raises(ValueError, match="y overlaps x"):
        norm(cpu, x=both[:3], y=both[2:5])
    norm(cpu, x=both[:3], y=both[3:])


def test_outputs_over_each_other_are_refused(cpu):
    x = make("normal", 1, 3, 64)
    total = guarded(3, 64).tensor
    with pytest.raises(ValueError, match="y overlaps total"):
        cpu.functions["norm.add_rms_norm"](
            stream=x, delta=x, weight=make("normal", 2, 64), total=total, y=total, eps=1e-6
        )


def test_heads_that_do_not_divide_are_refused(cpu):
    cache = Cache(heads=3, kv_heads=2, head_dim=16)
    with pytest.raises(ValueError, match="kv heads do not divide"):
        cpu.functions["attention.paged_attention"](
            q=cache.q(2), **cache.pools(), **cache.where(2), head_dim=16, scale=0.25,
            y=guarded(2, 48).tensor,
        )  # fmt: skip
    with pytest.raises(ValueError, match="not whole heads"):
        cpu.functions["norm.head_norm"](
            x=cache.q(2), weight=make("normal", 1, 15), y=guarded(2, 48).tensor, eps=1e-6
        )


def test_a_launch_reads_its_buffers_anew_each_time(cpu, module):
    x, weight, y = make("normal", 1, 3, 64), make("normal", 2, 64), guarded(3, 64)
    launch = norm(cpu, x=x, weight=weight, y=y.tensor)
    for seed in (3, 4):
        x.copy_(make("normal", seed, 3, 64))
        launch()
        fresh = guarded(3, 64)
        norm(cpu, x=x.clone(), weight=weight, y=fresh.tensor)()
        assert same_bits(y.check(), fresh.check())


def test_a_launch_keeps_its_tensors_alive(cpu):
    y = guarded(300, 640)
    launch = norm(cpu, x=make("normal", 1, 300, 640), weight=make("normal", 2, 640), y=y.tensor)
    launch()
    before = y.check().clone()
    gc.collect()
    torch.full((300, 640), 7.0, dtype=torch.bfloat16)  # would take the memory if it were free
    launch()
    assert same_bits(y.check(), before)


@pytest.mark.parametrize("foreign", (False, True), ids=("ours", "with a user's callable"))
def test_a_step_in_one_launch_runs_in_order(cpu, foreign):
    """Each linear reads what the one before wrote, some on one chunk and some on all."""
    x, seen = make("cancelling", 1, 3, 576), []
    weights = [make("cancelling", 2 + i, n, n) for i, n in enumerate((576, 576, 576))]
    small = make("normal", 9, 576)
    outs = [guarded(3, 576) for _ in range(6)]
    launches, read = [], x
    for i, weight in enumerate(weights):
        wide, normed = outs[2 * i], outs[2 * i + 1]
        launches += [
            cpu.functions["linear.linear"](x=read, weight=weight, bias=None, y=wide.tensor),
            norm(cpu, x=wide.tensor, weight=small, y=normed.tensor),
        ]
        read = normed.tensor
    if foreign:
        launches.insert(3, lambda: seen.append(outs[1].check().clone()))
    for launch in launches:
        launch()
    alone = [out.check().clone() for out in outs]
    for out in outs:
        out.tensor.fill_(float("nan"))
    step = cpu.functions["team.together"](launches)
    for _ in range(20):
        step()
        assert all(same_bits(out.check(), want) for out, want in zip(outs, alone, strict=True))
    assert len(seen) == (21 if foreign else 0)


def test_the_environment_is_checked(cpu):
    check = cpu.functions["environment.check_environment"]
    facts = check()
    assert facts.threads >= 1
    assert facts.threading_layer in ("omp", "none")
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(RuntimeError, match="flushed to zero"):
            check()
    finally:
        torch.set_flush_denormal(False)
    check()
