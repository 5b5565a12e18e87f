"""The tolerance and what is judged by it, on logits small enough to check by hand."""

from __future__ import annotations

import math

import pytest
import torch

from metpipe.oracle.judgement import Difference, bf16_half_ulp, judge

EXACT = torch.tensor([[8.0, 1.0, 0.0, -4.0], [0.0, 2.0, 1.5, 1.0]])
NOISE = torch.tensor([[0.25, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -0.25]])


def rows(logits_RV: torch.Tensor) -> list[torch.Tensor]:
    return list(logits_RV.bfloat16())


def judged(off_RV: torch.Tensor, noise_RV: torch.Tensor = NOISE):
    return judge(rows(EXACT + off_RV), EXACT, rows(EXACT + noise_RV))


def test_tolerances_are_multiples_of_the_measured_noise():
    found = judged(torch.zeros(2, 4))
    assert found.noise == Difference(0.25, math.sqrt(2 * 0.25**2 / 8))
    assert found.tolerance.max_abs == 4 * 0.25
    assert found.tolerance.rms == 2 * found.noise.rms
    assert found.difference == Difference(0.0, 0.0)


@pytest.mark.parametrize("largest_in", [0, 1])
def test_largest_and_mean_square_difference_cover_all_rows(largest_in):
    off = torch.tensor([[0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 0.5]])
    off[largest_in] *= -4
    assert judged(off).difference == Difference(2.0, math.sqrt((0.5**2 + 2.0**2) / 8))


def test_without_noise_the_last_rounding_of_the_largest_logit_is_tolerated():
    found = judged(torch.zeros(2, 4), torch.zeros(2, 4))
    assert found.noise == Difference(0.0, 0.0)
    assert found.tolerance == Difference(2.0**-5, 2.0**-5)  # 8 lies in [8, 16), spacing 2^-4


@pytest.mark.parametrize("value", [0.999, 1.0, 1.5, 8.0, 100.0, 3e-3])
def test_half_ulp_is_half_the_distance_to_the_next_bf16(value):
    here = torch.tensor(value).bfloat16()
    bits = here.view(torch.int16)
    here, above = here.double(), (bits + 1).view(torch.bfloat16).double()
    assert bf16_half_ulp(float(here)) == float(above - here) / 2


def test_top1_flip_counts_as_clear_only_beyond_twice_the_tolerance():
    # leads: 7 in row 0, 0.5 in row 1; tolerance 1
    flipped = torch.tensor([[0.0, 8.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    found = judged(flipped)
    assert (found.positions, found.agreements) == (2, 0)
    assert (found.clear, found.clear_flips) == (1, 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("row", [0, 1])
def test_reference_that_is_no_number_has_no_difference(bad, row):
    off = torch.zeros(2, 4)
    off[row, 3] = bad
    found = judged(off)
    assert found.difference is None
    assert found.noise is not None


def test_noise_that_is_no_number_tolerates_nothing():
    found = judged(torch.zeros(2, 4), torch.full((2, 4), math.nan))
    assert found.noise is None
    assert found.tolerance == Difference(0.0, 0.0)


def test_other_shapes_and_no_rows_are_refused():
    with pytest.raises(ValueError, match="rows"):
        judge(rows(EXACT)[:1], EXACT, rows(EXACT))
    with pytest.raises(ValueError, match="rows"):
        judge(rows(EXACT[:, :3]), EXACT, rows(EXACT))
    with pytest.raises(ValueError, match="rows"):
        judge([], EXACT[:0], [])
