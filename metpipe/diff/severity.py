"""How far apart two tensors of logits are. Shown beside a difference; never part of a verdict.

Shape suffixes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from metpipe.diff.argmax import argmax_rows

__all__ = ["Severity", "measure", "ordered_integers", "worst"]

INTEGERS = {
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float32: torch.int32,
}
"""Floats whose bits sort as sign and magnitude, and the integers of their width."""


@dataclass(frozen=True, slots=True)
class Severity:
    """Facts of the rows that differ, or of several such sets together."""

    elements: int
    """Elements looked at."""
    unequal_elements: int
    """Elements whose bits differ, -0.0 against +0.0 included."""
    nan_elements: int
    """Unequal elements of which at least one side is NaN: they have no distance."""
    max_abs: float
    """The largest absolute difference, of the other elements; 0.0 when there is none."""
    max_ulp: int
    """The most representable values between two elements; -0.0 and +0.0 are 0 apart."""
    argmax_flips: int
    """Rows that would be decoded to another token."""


def measure(reference_RV: torch.Tensor, run_RV: torch.Tensor) -> Severity | None:
    """The severity over [R, V] or [V] logits of one floating dtype.

    None where distance has no meaning: other shapes, other dtypes, or no floats.
    """
    if reference_RV.dtype != run_RV.dtype or reference_RV.dtype not in INTEGERS:
        return None
    if reference_RV.shape != run_RV.shape or reference_RV.ndim not in (1, 2):
        return None
    vocab_size = reference_RV.shape[-1]
    pairs = zip(reference_RV.view(-1, vocab_size), run_RV.view(-1, vocab_size), strict=True)
    # Row by row: the float64 copies of a whole batch would be eight times its logits.
    return worst(measure_row(reference_V, run_V) for reference_V, run_V in pairs)


def worst(severities: Iterable[Severity]) -> Severity | None:
    """Maxima of the distances and sums of the counts; None when there are none."""
    found = list(severities)
    if not found:
        return None
    return Severity(
        elements=sum(s.elements for s in found),
        unequal_elements=sum(s.unequal_elements for s in found),
        nan_elements=sum(s.nan_elements for s in found),
        max_abs=max(s.max_abs for s in found),
        max_ulp=max(s.max_ulp for s in found),
        argmax_flips=sum(s.argmax_flips for s in found),
    )


def measure_row(reference_V: torch.Tensor, run_V: torch.Tensor) -> Severity:
    width = INTEGERS[reference_V.dtype]
    unequal = torch.nonzero(reference_V.view(width) != run_V.view(width)).flatten()
    ours, theirs = reference_V[unequal], run_V[unequal]
    nan = ours.isnan() | theirs.isnan()
    max_abs, max_ulp = distances(ours[~nan], theirs[~nan])
    both_R = argmax_rows(torch.stack((reference_V, run_V))).tolist()
    return Severity(
        elements=reference_V.numel(),
        unequal_elements=unequal.numel(),
        nan_elements=int(nan.sum()),
        max_abs=max_abs,
        max_ulp=max_ulp,
        argmax_flips=int(both_R[0] != both_R[1]),
    )


def distances(ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, int]:
    if ours.numel() == 0:
        return 0.0, 0
    # float64: the difference of two large bf16 values is beyond FP32's range.
    absolute = (theirs.double() - ours.double()).abs().max()
    ulp = (ordered_integers(theirs) - ordered_integers(ours)).abs().max()
    return float(absolute), int(ulp)


def ordered_integers(values: torch.Tensor) -> torch.Tensor:
    """int64 that count representable values from zero, in the order of the floats.

    A float's bits are sign and magnitude; the magnitude, negated under a sign bit, is the count.
    (Bruce Dawson, "Comparing Floating Point Numbers", 2012 edition.) NaN has no meaning here.
    """
    bits = values.view(INTEGERS[values.dtype]).long()
    sign_bit = 1 << (8 * values.element_size() - 1)
    return torch.where(bits < 0, -(bits + sign_bit), bits)
