"""Rules of other bits: near the chain that they replace, and its own sum to the bit."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.values import make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
FAR = 2e-2
"""Of the chain's own size: each of its three roundings to bf16 is up to 2^-9 of a value."""


def near(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Relative to the size of all values; false with a NaN anywhere."""
    ours, theirs = ours.float(), theirs.float()
    return bool((ours - theirs).norm() <= FAR * theirs.norm())


@pytest.mark.parametrize("form", ("plain", "one_plus"))
@pytest.mark.parametrize(("dim", "n"), [(1024, 512), (448, 96), (4096, 9000), (64, 8000)])
def test_they_are_near_their_chain(gpu, form, dim, n):
    rows = 1
    stream, delta = make("normal", 1, rows, dim), make("normal", 2, rows, dim)
    norm_weight, weight = make("normal", 3, dim), make("normal", 4, n, dim)
    bias = make("normal", 5, n)
    given = {"stream": stream, "delta": delta, "eps": 1e-6, "weight_form": form}
    normed = launched(
        gpu.functions["norm.add_rms_norm"],
        {"total": Out(rows, dim), "y": Out(rows, dim)},
        **given,
        weight=norm_weight,
    )
    sizes = {"q": n, "k": n // 2, "v": n // 2}
    three = {f"{name}_weight": weight[:size].clone() for name, size in sizes.items()} | {
        f"{name}_bias": bias[:size].clone() for name, size in sizes.items()
    }
    outputs = {name: Out(rows, size) for name, size in sizes.items()}
    apart = launched(gpu.functions["linear.qkv"], outputs, x=normed["y"], **three)
    outputs = {name: Out(rows, size) for name, size in (sizes | {"total": dim}).items()}
    found = launched(
        gpu.functions["row_linears.add_norm_qkv"],
        outputs, norm_weight=norm_weight, **given, **three,
    )  # fmt: skip
    assert same(found["total"], normed["total"])
    assert all(near(found[name], apart[name]) for name in sizes)
    pair = {"weight": weight, "bias": bias}
    apart = launched(
        gpu.functions["linear.gate_up_silu"], {"y": Out(rows, n // 2)}, x=normed["y"], **pair
    )
    outputs = {"y": Out(rows, n // 2), "total": Out(rows, dim)}
    found = launched(
        gpu.functions["row_linears.add_norm_gate_up_silu"],
        outputs, norm_weight=norm_weight, **given, **pair,
    )  # fmt: skip
    assert same(found["total"], normed["total"])
    assert near(found["y"], apart["y"])


@pytest.mark.parametrize("biased", (True, False))
@pytest.mark.parametrize(
    ("k", "n"),
    [(64, 1), (192, 7), (448, 96), (3072, 1024), (2048, 1025), (12288, 4096), (4096, 40000)],
)
def test_a_linear_is_near_the_exact_product(gpu, k, n, biased):
    x, weight, bias = make("normal", 1, 1, k), make("normal", 2, n, k), make("normal", 3, n)
    given = {"x": x, "weight": weight, "bias": bias if biased else None}
    found = launched(gpu.functions["row_linears.linear"], {"y": Out(1, n)}, **given)["y"]
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    # One rounding to bf16 of the result; float32 sums are off by far less.
    assert bool(((found.double() - exact).abs() <= 2.0**-8 * exact.abs() + 2.0**-16 * size).all())


def test_a_norm_before_a_row_of_no_whole_steps_is_refused(gpu):
    rows, dim = 1, 100
    tensors = {name: make("normal", 1, rows, dim).cuda() for name in ("stream", "delta")}
    outputs = {"total": Out(rows, dim).tensor, "y": Out(rows, 8).tensor}
    with pytest.raises(ValueError, match="a row of a multiple of 64"):
        gpu.functions["row_linears.add_norm_gate_up_silu"](
            **tensors, **outputs, norm_weight=make("normal", 2, dim).cuda(), eps=1e-6,
            weight=make("normal", 3, 16, dim).cuda(), bias=None,
        )  # fmt: skip
