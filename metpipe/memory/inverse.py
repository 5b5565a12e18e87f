"""Which workload still fits: bisections over the one evaluator, with a look around the answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

from metpipe.errors import ConfigError
from metpipe.memory.evaluate import answer_at
from metpipe.memory.point import Point
from metpipe.memory.report import Answer

__all__ = ["Inverse", "largest_fitting", "max_concurrency", "max_isl"]

PROBES = (1, 2, 3, 7)
"""Distances from the answer at which monotonicity is looked at."""


@dataclass(frozen=True, slots=True)
class Inverse:
    """An inverse query's answer.

    `surely` is the largest value at which the serve fits whatever the driver takes, `possibly` the
    largest at which it may fit; None when not even `low` does. They differ only with a range.
    `exceptions` are probed values that break monotonicity: above `surely` and fitting, or below and
    not. `evaluations` counts the distinct points that were asked.
    """

    query: Literal["max_concurrency", "max_isl"]
    low: int
    high: int
    surely: int | None
    possibly: int | None
    exceptions: tuple[int, ...]
    evaluations: int


def largest_fitting(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value of low..high that fits, None when `low` does not.

    Presumes that what fits does so up to some value and not after it.

    Raises:
        ValueError: an empty range.
    """
    if low > high:
        raise ValueError(f"the range {low}..{high} is empty")
    if not fits(low):
        return None
    if fits(high):
        return high
    good, bad = low, high
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def max_concurrency(point: Point) -> Inverse:
    """The most sequences that fit at the point's ISL and OSL: 1 .. its slots (128 if they follow).

    Raises:
        ConfigError: as `evaluate` at one sequence.
    """

    def at(concurrency: int) -> Point:
        load = replace(point.workload, concurrency=concurrency)
        return replace(point, workload=load)

    return _inverse("max_concurrency", point.widest, at)


def max_isl(point: Point) -> Inverse:
    """The longest prompt that fits at the point's concurrency and OSL: 1 .. max_seq_len - OSL.

    Raises:
        ConfigError: as `evaluate` at a prompt of one token.
    """

    def at(isl: int) -> Point:
        return replace(point, workload=replace(point.workload, isl=isl))

    return _inverse("max_isl", max(1, point.serve.max_seq_len - point.workload.osl), at)


def _inverse(
    query: Literal["max_concurrency", "max_isl"], high: int, at: Callable[[int], Point]
) -> Inverse:
    if high < 1:
        raise ConfigError(f"{query}: nothing to search, the largest value is {high}")
    asked: set[int] = set()

    @cache
    def answer(value: int) -> Answer:
        asked.add(value)
        return answer_at(at(value))

    surely = largest_fitting(1, high, lambda value: answer(value) == "fits")
    possibly = largest_fitting(1, high, lambda value: answer(value) != "does not fit")
    around = surely or 0
    near = [around + sign * step for step in PROBES for sign in (-1, 1)]
    exceptions = tuple(
        value
        for value in sorted(near)
        if 1 <= value <= high and (answer(value) == "fits") != (value <= around)
    )
    return Inverse(query, 1, high, surely, possibly, exceptions, len(asked))
