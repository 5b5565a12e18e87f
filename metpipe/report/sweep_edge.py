"""The edge of what fits: how many sequences of what length, from what each job was asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from metpipe.report.sweep_record import Limit, MemoryRow

__all__ = ["End", "Point", "edge"]

End = Literal["surely", "possibly"]


class Point(NamedTuple):
    """So many sequences of so many prompt tokens fit.

    `asked_no_further`: more might, but the question ended there; so it is no edge, only inside it.
    """

    tokens: int
    sequences: int
    asked_no_further: bool


def edge(plans: Sequence[MemoryRow], end: End) -> list[Point]:
    """The outermost points that fit, by prompt length, from both questions of each plan.

    How many sequences of its length, and how long prompts of its number. A point below another
    one, as long and with more sequences, is no edge.
    """
    points = set(_points(plans, end))
    kept = [point for point in points if not any(_beyond(other, point) for other in points)]
    return sorted(kept, key=lambda point: (point.tokens, -point.sequences))


def _points(plans: Sequence[MemoryRow], end: End) -> Iterator[Point]:
    for plan in plans:
        load = plan.workload
        if (many := plan.limits.get("max_concurrency")) is not None:
            yield Point(load.isl, _at(many, end) or 0, _at(many, end) == many.high)
        if (long := plan.limits.get("max_isl")) is not None and (most := _at(long, end)):
            yield Point(most, load.concurrency, most == long.high)


def _at(limit: Limit, end: End) -> int | None:
    return limit.surely if end == "surely" else limit.possibly


def _beyond(other: Point, point: Point) -> bool:
    return other.tokens >= point.tokens and other.sequences > point.sequences
