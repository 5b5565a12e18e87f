"""One prompt's logits against an outside implementation's, and the tolerance between them.

Shapes: R rows (the prefill's last position, then each step), V logits of a row.

The tolerance is derived, not chosen. The reference computes in bf16; so it can't meet the outside
fp32 forward, but it must come about as near to it as the outside bf16 forward of the same weights
and tokens does, which is measured: the noise. Both are off by the same kind of error, a bf16
rounding of each stored value, only at other places. So two maxima, and two means, of the same law
are compared, and their ratio is near one; the factors are room for that ratio. Over 150 prompts of
50 small random models it lay between 0.4 and 1.5 for the largest error, and between 0.5 and 1.3 for
the root of the mean square, mostly below one, since the outside forward rounds at more places. A
fault moves logits by their own size instead: the largest difference shows one that strikes rarely,
the mean square one that is small but everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["MAX_FACTOR", "RMS_FACTOR", "Difference", "Judgement", "bf16_half_ulp", "judge"]

MAX_FACTOR = 4.0
"""Times the largest noise: an extreme value varies from draw to draw."""
RMS_FACTOR = 2.0
"""Times the noise's root mean square: a mean of many errors hardly varies."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How far bf16 rows are from fp32 ones, over all positions and logits."""

    max_abs: float
    rms: float


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one prompt showed."""

    positions: int
    agreements: int
    """Positions with the same top-1 as the outside fp32 forward."""
    difference: Difference | None
    """Of the reference from the outside fp32 forward; None when a logit is no number."""
    noise: Difference | None
    """Of the outside bf16 forward from the outside fp32 forward; None likewise."""
    tolerance: Difference
    """Zero when there is no noise to derive it from, so that only equal logits are within it."""
    clear: int
    """Positions whose fp32 top-1 leads by more than twice the tolerance."""
    clear_flips: int
    """Of these, the positions at which the reference's top-1 is another."""


def judge(
    ours_RV: Sequence[torch.Tensor], fp32_RV: torch.Tensor, bf16_RV: Sequence[torch.Tensor]
) -> Judgement:
    """Judge our bf16 rows by the outside forwards of the same tokens: fp32 [R, V] and bf16 rows.

    ValueError when there is no row, or the rows' count or length differ.
    """
    shapes = [(len(rows), *{len(row_V) for row_V in rows}) for rows in (ours_RV, bf16_RV, fp32_RV)]
    if set(shapes) != {tuple(fp32_RV.shape)} or not len(fp32_RV):
        raise ValueError(f"[rows, logits] of reference, outside bf16 and outside fp32: {shapes}")
    noise = _difference(bf16_RV, fp32_RV)
    tolerance = _tolerance(noise, float(fp32_RV.abs().max()))
    tops_R2 = fp32_RV.topk(2, dim=-1)
    leads = (tops_R2.values[:, 0] - tops_R2.values[:, 1]).tolist()
    same = [
        int(row_V.float().argmax()) == top
        for row_V, top in zip(ours_RV, tops_R2.indices[:, 0].tolist(), strict=True)
    ]
    clear = [lead > 2.0 * tolerance.max_abs for lead in leads]
    return Judgement(
        positions=len(same),
        agreements=sum(same),
        difference=_difference(ours_RV, fp32_RV),
        noise=noise,
        tolerance=tolerance,
        clear=sum(clear),
        clear_flips=sum(leads and not equal for leads, equal in zip(clear, same, strict=True)),
    )


def bf16_half_ulp(value: float) -> float:
    """Half the spacing of bf16 at a finite value: 2^-9 of the next power of two above it."""
    _, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 9)


def _tolerance(noise: Difference | None, largest: float) -> Difference:
    """The factors times the noise, but at least the final rounding of the largest logit."""
    if noise is None:
        return Difference(0.0, 0.0)
    least = bf16_half_ulp(largest)
    return Difference(max(MAX_FACTOR * noise.max_abs, least), max(RMS_FACTOR * noise.rms, least))


def _difference(rows_RV: Sequence[torch.Tensor], fp32_RV: torch.Tensor) -> Difference | None:
    """Row by row, so that one row's differences are held; None when one is NaN or infinite."""
    largest, squares = 0.0, 0.0
    for row_V, exact_V in zip(rows_RV, fp32_RV, strict=True):
        off_V = (row_V.float() - exact_V).abs()
        if not bool(off_V.isfinite().all()):
            return None
        largest = max(largest, float(off_V.max()))
        squares += float(off_V.double().square().sum())
    return Difference(largest, math.sqrt(squares / fp32_RV.numel()))
