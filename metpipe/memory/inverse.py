"""Which value of one setting still fits: a bisection over the one evaluator, and a look around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from metpipe.memory.evaluate import answer_at
from metpipe.memory.point import Point
from metpipe.memory.report import Answer

__all__ = ["Inverse", "Question", "Value", "answered", "largest_fitting"]

PROBES = (1, 2, 3, 7)
"""Distances from an answer at which monotonicity is looked at."""

Value = int | float | str
"""Of a count, a share, or a device."""


@dataclass(frozen=True, slots=True)
class Question:
    """The values that one setting may have, from the one that asks for the least memory upwards.

    `at` is the point with a value, `typed` how it is typed on a command line; `now` is the point's
    own value, None where it has none of these. `why` says why nothing is asked, where it isn't.
    `in_order` presumes that what fits does so up to some value; without it, every value is tried.
    `left_out`: why -> the values that are none of these, since no plan can be made with them.
    `beside` is an override of the point that every value of the question has, and the point hasn't.
    """

    query: str
    sense: Literal["most", "least"]
    values: Sequence[Value]
    at: Callable[[Value], Point]
    typed: Callable[[Value], str]
    now: Value | None = None
    why: str = ""
    in_order: bool = True
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: str = ""


@dataclass(frozen=True, slots=True)
class Inverse:
    """An inverse query's answer.

    `surely` is the value that asks for most and still fits whatever a range's end is, `possibly`
    the one that may fit; None when none does. They differ only with a range. `exceptions` are
    values near either that break monotonicity: beyond it and fitting, or before it and not.
    `low` and `high` are the ends of what was asked, `evaluations` the distinct points that it cost;
    `left_out` and `beside` are the question's.
    """

    query: str
    sense: Literal["most", "least"]
    low: Value | None
    high: Value | None
    surely: Value | None
    possibly: Value | None
    exceptions: tuple[Value, ...]
    evaluations: int
    why: str = ""
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    beside: str = ""


def answered(question: Question) -> Inverse:
    """The answer to a question.

    Raises:
        ConfigError: as `evaluate` at the value that asks for least.
    """
    values = question.values
    if question.why or not values:
        why = question.why or "there is nothing to choose from"
        left_out = question.left_out
        return Inverse(question.query, question.sense, None, None, None, None, (), 0, why, left_out)
    asked: set[int] = set()

    @cache
    def answer(index: int) -> Answer:
        asked.add(index)
        return answer_at(question.at(values[index]))

    last = len(values) - 1
    search = largest_fitting if question.in_order else _last_fitting
    surely = search(0, last, lambda index: answer(index) == "fits")
    possibly = search(0, last, lambda index: answer(index) != "does not fit")
    strange = {
        index
        for edge, fits in ((surely, ("fits",)), (possibly, ("fits", "depends")))
        for index in (_near(edge, last) if question.in_order else range(last + 1))
        if (answer(index) in fits) != (edge is not None and index <= edge)
    }
    ends = (values[0], values[last])
    return Inverse(
        query=question.query,
        sense=question.sense,
        low=ends[0] if question.sense == "most" else ends[1],
        high=ends[1] if question.sense == "most" else ends[0],
        surely=None if surely is None else values[surely],
        possibly=None if possibly is None else values[possibly],
        exceptions=tuple(values[index] for index in sorted(strange)),
        evaluations=len(asked),
        left_out=question.left_out,
        beside=question.beside,
    )


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


def _last_fitting(low: int, high: int, fits: Callable[[int], bool]) -> int | None:
    """The largest value that fits, whatever those below it do."""
    return max(filter(fits, range(low, high + 1)), default=None)


def _near(edge: int | None, last: int) -> list[int]:
    """Places around an answer; around none, those at the beginning."""
    around = -1 if edge is None else edge
    near = (around + sign * step for step in PROBES for sign in (-1, 1))
    return [place for place in near if 0 <= place <= last]
