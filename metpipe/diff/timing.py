"""The one statistic of a run's times. Timing never takes part in a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["median_after_first"]


def median_after_first(times: Sequence[float]) -> float:
    """The upper median of all but the first, which compiles or captures; NaN when none is left."""
    rest = sorted(times[1:])
    return rest[len(rest) // 2] if rest else math.nan
