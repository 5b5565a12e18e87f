"""The ranks of a plan: a point for each kind of them, and which of their reports decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from metpipe.memory.parallel import Parallel
from metpipe.memory.point import Point
from metpipe.memory.report import SEVERITY, MemoryReport, PoolRoom, RankBytes

__all__ = ["fullest_of", "rank_point", "rank_points"]


def rank_points(point: Point) -> tuple[Point, ...]:
    """The point as the ranks of each stage see it."""
    assert point.parallel is not None
    return tuple(replace(point, planned=stage.planned) for stage in point.parallel.stages)


def rank_point(point: Point, report: MemoryReport) -> Point:
    """The point as the report's own ranks see it."""
    return point if point.parallel is None else rank_points(point)[report.fullest]


def fullest_of(parallel: Parallel, reports: Sequence[MemoryReport]) -> MemoryReport:
    """The report of the stage that decides: the worst answer, then the largest total.

    The pool that the budget leaves is the smallest of any rank's: all ranks share its blocks.
    """
    fullest = max(range(len(reports)), key=lambda index: _weight(reports[index]))
    rooms = [report.pool for report in reports if report.pool is not None]
    return replace(
        reports[fullest],
        ranks=tuple(
            RankBytes(
                first=stage.first,
                last=stage.last,
                first_layer=stage.layers.start,
                last_layer=stage.layers.stop - 1,
                terms=report.terms,
                total_low=report.total_low,
                total_high=report.total_high,
                answer=report.answer,
            )
            for stage, report in zip(parallel.stages, reports, strict=True)
        ),
        fullest=fullest,
        pool=min(rooms, key=_blocks, default=None),
    )


def _weight(report: MemoryReport) -> tuple[int, int, int]:
    return SEVERITY.index(report.answer), report.total_high, report.total_low


def _blocks(room: PoolRoom) -> tuple[int, int]:
    return room.blocks_low, room.blocks_high
