"""Along what a sweep varies: the keys whose value is not the same in every job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metpipe.report.sweep_record import JobRow

__all__ = ["CONCURRENCY", "ISL", "Axis", "axes", "fixed", "typed"]

ISL = "workload.isl"
CONCURRENCY = "workload.concurrency"
NAMES = {ISL: "prompt tokens", CONCURRENCY: "sequences at once", "workload.osl": "tokens generated"}


@dataclass(frozen=True, slots=True)
class Axis:
    """One swept key and its distinct values: numbers by size, all else in the order typed."""

    key: str
    values: tuple[str, ...]

    @property
    def numeric(self) -> bool:
        """Whether every value is a number."""
        return all(_number(value) is not None for value in self.values)

    @property
    def name(self) -> str:
        """What the key counts, where that is known; else the key."""
        return NAMES.get(self.key, self.key)


def typed(job: JobRow) -> dict[str, str]:
    """The job's overrides as key and value; a later one of a key wins."""
    pairs = (override.lstrip("+").partition("=") for override in job.overrides)
    return {key: value for key, _, value in pairs}


def axes(jobs: Sequence[JobRow]) -> list[Axis]:
    """The swept keys in the order that they were typed."""
    rows = [typed(job) for job in jobs]
    keys = dict.fromkeys(key for row in rows for key in row)
    found = []
    for key in keys:
        values = tuple(dict.fromkeys(row.get(key, "") for row in rows))
        if len(values) > 1:
            found.append(Axis(key, _sorted(values)))
    return found


def fixed(jobs: Sequence[JobRow]) -> dict[str, str]:
    """The overrides that every job has alike."""
    rows = [typed(job) for job in jobs]
    first = rows[0] if rows else {}
    return {key: value for key, value in first.items() if all(r.get(key) == value for r in rows)}


def _sorted(values: tuple[str, ...]) -> tuple[str, ...]:
    numbers = [_number(value) for value in values]
    if None in numbers:
        return values
    return tuple(sorted(values, key=lambda value: _number(value) or 0.0))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
