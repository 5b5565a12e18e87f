"""One prompt's logits against an outside implementation's, and the tolerance between them.

Shapes: R rows (the prefill's last position, then each step), V logits of a row.

The tolerance is derived, not chosen. The reference computes in bf16; so it can't meet the fp32
forward of the outside implementation, but it must come about as near to it as that implementation's
own bf16 forward of the same weights and tokens does, which is measured: the noise. Both differ from
fp32 by the same kind of error, a bf16 rounding at each stored value, made at other places and so
independent; hence two maxima of the same law, whose ratio is near one. FACTOR is the room for that
ratio. A fault (a weight in another order, a wrong angle, a bias left out) moves logits by their own
size instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["FACTOR", "Judgement", "bf16_half_ulp", "judge"]

FACTOR = 4.0
"""Times the noise. The noise is a maximum over as many logits as are judged."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one prompt showed; `None` where a difference is no number."""

    positions: int
    agreements: int
    """Positions with the same top-1 as the outside fp32 forward."""
    max_abs_difference: float | None
    noise: float | None
    """Largest difference between the outside implementation's own bf16 and fp32 forwards."""
    tolerance: float
    """Zero when no noise could be measured, so that nothing is within it."""
    clear: int
    """Positions whose fp32 top-1 leads by more than twice the tolerance."""
    clear_flips: int
    """Of these, the positions at which the reference's top-1 is another."""

    @property
    def passed(self) -> bool:
        """Within the tolerance everywhere, and no top-1 differs that the tolerance can't excuse."""
        near = self.max_abs_difference is not None and self.max_abs_difference <= self.tolerance
        return near and self.clear_flips == 0


def judge(
    ours_RV: Sequence[torch.Tensor], fp32_RV: torch.Tensor, bf16_RV: Sequence[torch.Tensor]
) -> Judgement:
    """Judge our bf16 rows by the outside forwards of the same tokens: fp32 [R, V] and bf16 rows.

    ValueError when the rows or their lengths differ, or there is none.
    """
    shapes = {(len(rows), len(rows[0])) if len(rows) else (0, 0) for rows in (ours_RV, bf16_RV)}
    if shapes != {tuple(fp32_RV.shape)} or not len(fp32_RV):
        raise ValueError(f"logits of {sorted(shapes)} against fp32 {list(fp32_RV.shape)}")
    difference = _largest_distance(ours_RV, fp32_RV)
    noise = _largest_distance(bf16_RV, fp32_RV)
    tolerance = 0.0 if noise is None else _tolerance(noise, float(fp32_RV.abs().max()))
    ours_top = [int(row.float().argmax()) for row in ours_RV]
    (first_R, second_R), top_R = _two_largest(fp32_RV)
    same = [ours == int(top) for ours, top in zip(ours_top, top_R, strict=True)]
    clear = [float(lead) > 2.0 * tolerance for lead in first_R - second_R]
    return Judgement(
        positions=len(same),
        agreements=sum(same),
        max_abs_difference=difference,
        noise=noise,
        tolerance=tolerance,
        clear=sum(clear),
        clear_flips=sum(
            is_clear and not equal for is_clear, equal in zip(clear, same, strict=True)
        ),
    )


def _tolerance(noise: float, largest: float) -> float:
    """FACTOR times the noise, but at least the final rounding of the largest logit."""
    return max(FACTOR * noise, bf16_half_ulp(largest))


def bf16_half_ulp(value: float) -> float:
    """Half the spacing of bf16 at a finite value: 2^-9 of the next power of two above it."""
    _, exponent = math.frexp(value)
    return math.ldexp(1.0, exponent - 9)


def _largest_distance(rows_RV: Sequence[torch.Tensor], fp32_RV: torch.Tensor) -> float | None:
    """The largest absolute difference; None as soon as one is NaN or infinite."""
    largest = [
        float((row_V.float() - exact_V).abs().max())
        for row_V, exact_V in zip(rows_RV, fp32_RV, strict=True)
    ]
    # NOTE: max() of Python floats would drop a NaN that doesn't come first.
    return max(largest) if all(math.isfinite(value) for value in largest) else None


def _two_largest(fp32_RV: torch.Tensor) -> tuple[tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
    """((largest, second) [R] each, index of the largest [R])."""
    values_R2, indices_R2 = fp32_RV.topk(2, dim=-1)
    return (values_R2[:, 0], values_R2[:, 1]), indices_R2[:, 0]
