"""The set's own exp: within an ulp over its whole range, the same in one lane and in sixteen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numba import njit


@pytest.fixture(scope="module")
def exps(module):
    exp = module("scalar").exp
    memory = module("memory")
    load1, load16, store1, store16 = (
        memory.load_f32, memory.load_f32x16, memory.store_f32, memory.store_f32x16,
    )  # fmt: skip

    @njit(fastmath=False)
    def one_by_one(x, y, n):
        for i in range(n):
            store1(y, i, exp(load1(x, i)))

    @njit(fastmath=False)
    def by_sixteen(x, y, n):
        for i in range(0, n, 16):
            store16(y, i, exp(load16(x, i)))

    def run(function, x):
        y = np.full_like(x, np.nan)
        function(x.ctypes.data, y.ctypes.data, len(x))
        return y

    return lambda x: run(one_by_one, x), lambda x: run(by_sixteen, x)


def points():
    """Every float32 pattern of a wide range, thinned, with the ends of the range."""
    patterns = np.arange(0, 0x42D00000, 1009, dtype=np.uint32)  # 0 .. 104
    x = patterns.view(np.float32)
    x = np.concatenate([x, -x, np.linspace(-104, 89, 400_000, dtype=np.float32)])
    return x[: len(x) // 16 * 16].copy()


def test_exp_is_within_an_ulp(exps):
    x = points()
    got = exps[1](x).astype(np.float64)
    exact = np.exp(x.astype(np.float64))
    # An ulp of the result: 2^-23 of its binade, at least the smallest subnormal.
    ulp = np.maximum(2.0 ** (np.floor(np.log2(np.maximum(exact, 2.0**-126))) - 23), 2.0**-149)
    finite = exact < np.finfo(np.float32).max
    error = np.abs(got - exact)[finite] / ulp[finite]
    assert error.max() <= 1.0
    assert error.mean() < 0.3
    assert bool(np.isinf(got[exact > np.float64(np.finfo(np.float32).max) * (1 + 2**-25)]).all())


def test_exp_is_the_same_in_one_lane_and_in_sixteen(exps):
    x = points()
    assert np.array_equal(exps[0](x).view(np.uint32), exps[1](x).view(np.uint32))


def test_exp_at_its_ends(exps):
    x = np.array([0.0, -0.0, np.inf, -np.inf, 1e30, -1e30, 89.0, -104.0] * 2, dtype=np.float32)
    assert exps[1](x)[:8].tolist() == [1.0, 1.0, np.inf, 0.0, np.inf, 0.0, np.inf, 0.0]
    assert bool(np.isnan(exps[1](np.full(16, np.nan, np.float32))).all())


def test_sigmoid_is_within_two_ulps(module):
    sigmoid = module("scalar").sigmoid
    for x in np.linspace(-80, 80, 999, dtype=np.float32):
        exact = 1 / (1 + np.exp(-np.float64(x)))
        assert abs(float(sigmoid(x)) - exact) <= 2 * 2.0**-23 * exact


def test_bf16_rounding_is_to_nearest_even(cpu):
    """Every tie and both neighbours, through an add of zero: as torch rounds."""
    high = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    step = (high.view(torch.int16).to(torch.int32) << 16).view(torch.float32)
    half = ((high.view(torch.int16).to(torch.int32) << 16) + 0x8000).view(torch.float32) - step
    half = half.bfloat16()
    usable = half.isfinite() & high.isfinite()
    stream, delta = high[usable][None], half[usable][None]
    y = torch.empty_like(stream)
    cpu.functions["residual.residual_add"](stream=stream, delta=delta, y=y)()
    assert torch.equal(y, (stream.float() + delta.float()).bfloat16())
    assert float((y != stream).float().mean()) > 0.3
