"""Distances by hand."""

from __future__ import annotations

import math

import pytest
import torch

from metpipe.diff.severity import Severity, measure, ordered_integers, worst

LARGEST = 3.3895313892515355e38
"""The largest finite bf16, 0x7F7F."""


def bf16(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.bfloat16)


def measured(reference: torch.Tensor, run: torch.Tensor) -> Severity:
    severity = measure(reference, run)
    assert severity is not None
    return severity


@pytest.mark.parametrize(
    ("ours", "theirs", "max_abs", "max_ulp"),
    [
        pytest.param(1.0, 1.0078125, 2**-7, 1, id="next-above-one"),
        pytest.param(1.0, 0.99609375, 2**-8, 1, id="next-below-one"),
        pytest.param(1.0, 2.0, 1.0, 128, id="one-binade"),
        pytest.param(-1.0, 1.0, 2.0, 2 * 0x3F80, id="across-zero"),
        pytest.param(0.0, -0.0, 0.0, 0, id="signed-zeros"),
        pytest.param(math.inf, LARGEST, math.inf, 1, id="infinity"),
        pytest.param(LARGEST, -LARGEST, 2 * LARGEST, 2 * 0x7F7F, id="beyond-fp32"),
    ],
)
def test_distances_of_two_values(ours: float, theirs: float, max_abs: float, max_ulp: int) -> None:
    severity = measured(bf16(0, ours), bf16(0, theirs))
    assert severity.max_abs == pytest.approx(max_abs, rel=1e-6)
    assert severity.max_ulp == max_ulp
    assert (severity.elements, severity.unequal_elements) == (2, 1)


def test_nan_is_counted_and_has_no_distance() -> None:
    severity = measured(bf16(math.nan, math.nan, 1, 2), bf16(math.nan, 1, math.nan, 2.5))
    assert (severity.unequal_elements, severity.nan_elements) == (3, 2)
    assert severity.max_abs == 0.5


def test_nan_alone_gives_no_distance() -> None:
    severity = measured(bf16(1, math.nan), bf16(1, 2))
    assert (severity.max_abs, severity.max_ulp, severity.nan_elements) == (0.0, 0, 1)
    assert severity.argmax_flips == 1


def test_flips_are_counted_by_row() -> None:
    ours = torch.stack([bf16(1, 2), bf16(2, 1), bf16(1, 1)])
    theirs = torch.stack([bf16(2, 1), bf16(3, 1), bf16(1, 1)])
    severity = measured(ours, theirs)
    assert severity.argmax_flips == 1
    assert severity.elements == 6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ordered_integers_count_every_value_in_order(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15).short()
    values = bits.view(dtype)
    values = values[~values.isnan()]
    order = values.double().argsort(stable=True)
    steps = ordered_integers(values)[order].diff()
    # Both zeros have one place; everything else is one apart.
    assert int((steps == 0).sum()) == 1
    assert int((steps == 1).sum()) == len(steps) - 1


def test_float32_distance() -> None:
    one = torch.tensor([1.0])
    assert measured(one, torch.nextafter(one, torch.tensor([2.0]))).max_ulp == 1
    assert measured(one, -one).max_ulp == 2 * 0x3F800000


def test_no_distance_between_other_forms() -> None:
    assert measure(bf16(1), torch.ones(1)) is None
    assert measure(bf16(1), bf16(1, 2)) is None
    assert measure(torch.ones(1).byte(), torch.ones(1).byte()) is None
    assert worst([]) is None


def test_worst_takes_maxima_and_sums() -> None:
    first = measured(bf16(1, 2), bf16(1, 2.5))
    second = measured(bf16(1, math.nan), bf16(1.0078125, 2))
    both = worst([first, second])
    assert both == Severity(4, 3, 1, 0.5, 32, 1)
