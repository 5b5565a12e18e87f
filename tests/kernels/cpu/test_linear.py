"""The linear: right within a derived bound, and one row's bits whatever is beside it."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.values import SOUND, guarded, make, same_bits

ROWS = (1, 2, 3, 5, 8, 17)
SHAPES = ((576, 576), (67, 64), (130, 67), (33, 100), (9, 31), (1, 1), (515, 1536))
BF16_ROUNDOFF, F32_ROUNDOFF = 2.0**-8, 2.0**-24


def run(cpu, x, weight, bias=None):
    y = guarded(x.shape[0], weight.shape[0])
    cpu.functions["linear.linear"](x=x, weight=weight, bias=bias, y=y.tensor)()
    return y.check()


def bound(x, weight, bias):
    """Rounding of the chain (each product meets at most so many additions), then of the store."""
    k = x.shape[1]
    additions = k // 32 + 1 + 4 + k % 32 + 1
    weighed = x.double().abs() @ weight.double().abs().T + (0 if bias is None else bias.abs())
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    chain = 1.01 * additions * F32_ROUNDOFF * weighed
    return exact, chain * (1 + BF16_ROUNDOFF) + BF16_ROUNDOFF * exact.abs() + 2.0**-133


@pytest.mark.parametrize("kind", SOUND)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_linear_is_within_its_bound(cpu, kind, n, k):
    for rows in ROWS:
        x, weight = make(kind, 1, rows, k), make("normal", 2, n, k)
        bias = make("normal", 3, n) if rows % 2 else None
        y = run(cpu, x, weight, bias)
        exact, allowed = bound(x, weight, bias)
        assert bool(((y.double() - exact).abs() <= allowed).all())


def test_the_bound_is_tight_enough_to_find_a_dropped_element(cpu):
    x, weight = make("normal", 1, 4, 67), make("normal", 2, 33, 67)
    exact, allowed = bound(x, weight, None)
    shorter = run(cpu, x[:, :66].contiguous(), weight[:, :66].contiguous())
    assert float(((shorter.double() - exact).abs() > allowed).double().mean()) > 0.9


@pytest.mark.parametrize("kind", ("paired", "mixed_exponents", "sparse_nan_and_inf"))
@pytest.mark.parametrize(("n", "k"), ((576, 576), (67, 36), (130, 100), (515, 4096), (31, 67)))
def test_a_row_has_the_same_bits_at_every_row_count(cpu, kind, n, k):
    x, weight, bias = make(kind, 4, 16, k), make("cancelling", 5, n, k), make("normal", 6, n)
    alone = torch.cat([run(cpu, x[row : row + 1], weight, bias) for row in range(16)])
    assert kind != "paired" or bool(alone.isfinite().all())
    for rows in range(1, 17):
        assert same_bits(run(cpu, x[:rows], weight, bias), alone[:rows])


@pytest.mark.parametrize(
    ("kinds", "seen"), ((("paired", "cancelling"), True), (("normal",) * 2, False))
)
def test_only_cancelling_products_show_another_order(kinds, seen):
    """What the tests here rest on: the same products, summed in another order, in bf16."""
    x, weight = make(kinds[0], 4, 16, 576).float(), make(kinds[1], 5, 64, 576).float()
    lanes = (x[:, None] * weight[None]).unflatten(-1, (18, 32)).sum(-2)
    halves, pairs = lanes, lanes
    while halves.shape[-1] > 1:
        half = halves.shape[-1] // 2
        halves = halves[..., :half] + halves[..., half:]
        pairs = pairs[..., ::2] + pairs[..., 1::2]
    differ = float((halves.bfloat16() != pairs.bfloat16()).float().mean())
    assert differ > 0.5 if seen else differ < 0.01


def test_a_row_has_the_same_bits_in_a_long_prefill(cpu):
    x, weight = make("paired", 7, 131, 100), make("cancelling", 8, 37, 100)
    alone = torch.cat([run(cpu, x[row : row + 1], weight) for row in (0, 63, 64, 127, 130)])
    assert same_bits(run(cpu, x, weight)[[0, 63, 64, 127, 130]], alone)


def test_neighbours_do_not_matter(cpu):
    x, weight = make("paired", 9, 5, 576), make("cancelling", 10, 64, 576)
    before = run(cpu, x, weight)[2].clone()
    x[[0, 1, 3, 4]] = make("any_bits", 11, 4, 576)
    assert same_bits(run(cpu, x, weight)[2], before)


@pytest.mark.parametrize("cut", (1, 2, 3, 5, 64, 333))
def test_an_output_has_the_same_bits_wherever_the_weights_are_cut(cpu, cut):
    x, weight = make("paired", 12, 3, 576), make("cancelling", 13, 515, 576)
    whole = run(cpu, x, weight)
    parts = [run(cpu, x, weight[:cut].contiguous()), run(cpu, x, weight[cut:].contiguous())]
    assert same_bits(torch.cat(parts, dim=1), whole)


def test_an_unaligned_start_changes_nothing(cpu):
    x, weight = make("paired", 14, 2, 100), make("cancelling", 15, 33, 100)
    moved = torch.empty(weight.numel() + 1, dtype=torch.bfloat16)[1:].view(weight.shape)
    moved.copy_(weight)
    assert same_bits(run(cpu, x, moved), run(cpu, x, weight))


def test_every_nan_is_the_same_nan(cpu):
    x, weight = make("any_bits", 16, 8, 64), make("any_bits", 17, 64, 64)
    y = run(cpu, x, weight)
    assert bool(y.isnan().any())
    assert set(y[y.isnan()].view(torch.int16).tolist()) == {0x7FC0}
