"""What the stacked plot of a sweep shows: which panels, which jobs along each, which terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from metpipe.memory.report import Status
from metpipe.report.plot_words import value_label
from metpipe.report.sweep_axes import ISL, Axis, typed
from metpipe.report.sweep_record import JobRow, MemoryRow, TermRow

__all__ = ["MAX_PANELS", "Panel", "Stack", "along_of", "panels", "stacks"]

MAX_PANELS = 12
SMALL = 0.01
"""A term below this share of the picture's height goes into `other`."""
STATUSES: tuple[Status, ...] = ("exact", "calibrated", "uncalibrated")


@dataclass(frozen=True, slots=True)
class Panel:
    """The jobs along the x axis, None where the sweep has none there, and what they have alike."""

    title: str
    jobs: tuple[JobRow | None, ...]

    @property
    def plans(self) -> list[MemoryRow]:
        """The plans that there are."""
        return [job.memory for job in self.jobs if job is not None and job.memory is not None]


@dataclass(frozen=True, slots=True)
class Stack:
    """One part of every bar: what it is called, its status, and which terms of a bill it sums.

    `status` is the weakest that it has in any plan; `in_part`: another plan has a better one.
    """

    name: str
    status: Status
    ids: frozenset[str]
    in_part: bool = False

    def of(self, memory: MemoryRow) -> tuple[int, int]:
        """Its low and high end in one plan, in bytes."""
        own = [term for term in memory.terms if term.id in self.ids]
        return sum(term.low for term in own), sum(term.high for term in own)

    def status_in(self, memory: MemoryRow) -> Status:
        """Its status in one plan."""
        return _weakest([term for term in memory.terms if term.id in self.ids])


def along_of(axes: Sequence[Axis]) -> Axis:
    """The axis that stands below the bars: numbers before names, then the one with most values."""
    return max(axes, key=lambda axis: (axis.numeric, len(axis.values), axis.key == ISL))


def panels(jobs: Sequence[JobRow], axes: Sequence[Axis], along: Axis) -> list[Panel]:
    """The combinations of all other axes, in their order; those without a plan are left out."""
    others = [axis for axis in axes if axis is not along]
    by_values = {_where(axes, typed(job)): job for job in jobs}
    found = []
    for values in product(*(axis.values for axis in others)):
        at = dict(zip((axis.key for axis in others), values, strict=True))
        places = [_where(axes, at | {along.key: value}) for value in along.values]
        title = ", ".join(value_label(key, value) for key, value in at.items())
        panel = Panel(title, tuple(by_values.get(place) for place in places))
        if panel.plans:
            found.append(panel)
    return found[:MAX_PANELS]


def _where(axes: Sequence[Axis], at: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(at.get(axis.key, "") for axis in axes)


def stacks(plans: Sequence[MemoryRow], top: float) -> list[Stack]:
    """What is drawn, from the bottom up: the small ones, those that stay the same, those that vary.

    Terms of nothing are left out. Those that are small beside `top` (bytes) are summed as `other`,
    with the weakest status among them.
    """
    names = list(dict.fromkeys(term.id for plan in plans for term in plan.terms))
    of = {name: [_term(plan, name) for plan in plans] for name in names}
    some = [name for name in names if any(term.high for term in of[name])]
    small = [name for name in some if max(term.high for term in of[name]) < SMALL * top]
    if len(small) == 1:
        small = []
    large = [name for name in some if name not in small]
    large.sort(key=lambda name: len({term.low for term in of[name]}) > 1)
    return [
        *([_stack("other", small, plans)] if small else []),
        *(_stack(name, [name], plans) for name in large),
    ]


def _stack(name: str, ids: Sequence[str], plans: Sequence[MemoryRow]) -> Stack:
    held = [[t for t in plan.terms if t.id in ids and t.high] for plan in plans]
    found = {_weakest(terms) for terms in held if terms}
    return Stack(name, max(found, key=STATUSES.index), frozenset(ids), in_part=len(found) > 1)


def _term(plan: MemoryRow, name: str) -> TermRow:
    none = TermRow(id=name, low=0, high=0, status="exact")
    return next((term for term in plan.terms if term.id == name), none)


def _weakest(terms: Sequence[TermRow]) -> Status:
    return max((term.status for term in terms if term.high), key=STATUSES.index, default="exact")
