"""Each kind of values has what its name says, and cancelling ones show a changed tree."""

from __future__ import annotations

import pytest
import torch

from metpipe.engine.microtest.guarded import is_fill
from metpipe.engine.microtest.values import KINDS, Subject, draw

ROLES = ("operand", "stream", "matrix", "vector", "bias", "state")


def subject(role: str, rows: int = 6, dim: int = 71, index: int = 0) -> Subject:
    return Subject(role, (rows, dim), index, beside_matrix=False)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_repeats_and_holds_no_mark(kind, role):
    first, again = (draw(kind, subject(role), seed=5) for _ in range(2))
    assert first.shape == (6, 71)
    assert first.dtype is torch.bfloat16
    assert first.is_contiguous()
    assert same_bits(first, again)
    assert not is_fill(first).any()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "all equal"])
def test_another_seed_gives_other_values(kind):
    x, y = (draw(kind, subject("operand"), seed=seed) for seed in (1, 2))
    assert not same_bits(x, y)


def product(x_RK: torch.Tensor, w_NK: torch.Tensor) -> torch.Tensor:
    """Rows of x times rows of w, summed from the first element on, rounded to bf16."""
    total = torch.zeros(x_RK.shape[0], w_NK.shape[0])
    for k in range(x_RK.shape[1]):
        total = total + x_RK[:, k, None].float() * w_NK[None, :, k].float()
    return total.to(torch.bfloat16)


def differing(kind: str) -> int:
    """Outputs that change when a dot is summed from the other end."""
    x_RK = draw(kind, subject("operand", 8, 96), seed=3)
    w_NK = draw(kind, subject("matrix", 64, 96), seed=4)
    forward, backward = product(x_RK, w_NK), product(x_RK.flip(1), w_NK.flip(1))
    return int((forward.view(torch.int16) != backward.view(torch.int16)).sum())


def test_cancelling_rows_show_another_order_of_a_sum_where_normal_ones_do_not():
    assert differing("cancelling") > 20 * max(differing("normal"), 1)


def test_streams_that_cancel_leave_little_of_their_sum():
    a, b = (draw("cancelling", subject("stream", index=i), seed=i).float() for i in (0, 1))
    assert (a + b == 0).float().mean() > 0.8
    assert (a + b != 0).any()


def test_even_rows_stay_finite_beside_nan_and_inf():
    x = draw("NaN and inf", subject("operand", 8, 512), seed=1).float()
    assert x[::2].isfinite().all()
    assert x[1::2].isnan().any()
    assert x[1::2].isinf().any()
    assert not draw("NaN and inf", subject("vector", 1, 512), seed=1).isfinite().all()


def test_huge_meets_tiny_so_that_products_are_numbers():
    x = draw("huge and denormal", subject("operand", 8, 512), seed=1).float()
    w = draw("huge and denormal", subject("matrix", 64, 512), seed=2).float()
    smallest = torch.finfo(torch.bfloat16).smallest_normal
    assert ((x != 0) & (x.abs() < smallest)).any()
    assert x.abs().max() > 1e18
    assert x.isfinite().all()
    assert (x @ w.T).isfinite().all()
    assert (x @ w.T != 0).any()
    assert x[::2].square().sum(1).isfinite().all()


def test_both_zeros_are_there_and_a_row_of_minus_zero():
    x = draw("negative zero", subject("stream"), seed=1).float()
    zeros = x[x == 0]
    assert zeros.signbit().any()
    assert not zeros.signbit().all()
    assert bool((x[1] == 0).all() and x[1].signbit().all())
    assert (x != 0).any()


@pytest.mark.parametrize("role", ["operand", "stream"])
def test_a_one_hot_row_has_one_element(role):
    x = draw("one hot", subject(role), seed=1)
    assert (x != 0).sum(1).tolist() == [1] * 6


def test_zero_rows_stand_beside_others():
    x = draw("zero rows", subject("operand"), seed=1)
    assert (x[::2] == 0).all()
    assert (x[1::2] != 0).any()


def test_random_bits_are_anything_in_odd_rows_and_tame_in_even_ones():
    x = draw("random bits", subject("stream", 4, 4096), seed=1).float()
    assert x[::2].abs().max() < 2.0**20
    assert x[1::2].isnan().any()
    assert x[1::2].abs().nan_to_num(0).max() > 2.0**100
