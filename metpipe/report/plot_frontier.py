"""What fits: sequences at once against prompt tokens, where a sweep varies both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, NullLocator

from metpipe.report import plot_style as style
from metpipe.report.plot_words import headline, subtitle, value_label
from metpipe.report.sweep_axes import CONCURRENCY, ISL, Axis, typed
from metpipe.report.sweep_edge import Point, edge
from metpipe.report.sweep_record import JobRow, MemoryRow

__all__ = ["MAX_LINES", "draw", "has_frontier"]

MAX_LINES = 6
STRAIGHT = (
    "an edge is straight between what was asked; dashed where more was not asked, and may fit"
)
LINES = ("#33608c", "#e8923a", "#59a14f", "#b07aa1", "#c62828", "#4f9d8f")
DASHED: Mapping[str, Any] = {
    "color": style.PALE,
    "linestyle": (0, (4, 3)),
    "linewidth": 0.9,
}


@dataclass(frozen=True, slots=True)
class Series:
    """The jobs that share all but concurrency and context."""

    name: str
    jobs: tuple[JobRow, ...]

    @property
    def plans(self) -> list[MemoryRow]:
        """The plans that there are."""
        return [job.memory for job in self.jobs if job.memory is not None]


def has_frontier(axes: Sequence[Axis]) -> bool:
    """Whether both concurrency and context are swept."""
    return {CONCURRENCY, ISL} <= {axis.key for axis in axes if axis.numeric}


def draw(jobs: Sequence[JobRow], axes: Sequence[Axis]) -> Figure:
    """The figure of a sweep over both keys, of which at least one job has a plan."""
    found = [series for series in _series(jobs, axes) if series.plans]
    drawn, left = found[:MAX_LINES], found[MAX_LINES:]
    more = [f"{len(left)} more lines are not drawn"] if left else []
    lines = [*subtitle(jobs, 8.0), STRAIGHT, *more]
    title = headline(jobs, axes, "how many sequences of what length fit")
    figure = style.sheet(8.0, 4.4, title, lines, list(_legend(drawn, jobs)))
    axis = figure.subplots()
    style.tidy(axis)
    axis.grid(axis="x", color="#e4e4e4", linewidth=0.6)
    _scales(axis, drawn, axes)
    for colour, series in zip(LINES, drawn, strict=False):
        _region(axis, series, colour, alone=len(drawn) == 1)
    _limits(axis, drawn)
    if len(drawn) == 1:
        _points(axis, drawn[0])
    return figure


def _series(jobs: Sequence[JobRow], axes: Sequence[Axis]) -> Iterator[Series]:
    others = [axis.key for axis in axes if axis.key not in (CONCURRENCY, ISL)]
    groups: dict[tuple[str, ...], list[JobRow]] = {}
    for job in jobs:
        at = typed(job)
        groups.setdefault(tuple(at.get(key, "") for key in others), []).append(job)
    for values, group in groups.items():
        name = ", ".join(value_label(key, v) for key, v in zip(others, values, strict=True))
        yield Series(name, tuple(group))


def _scales(axis: Axes, drawn: Sequence[Series], axes: Sequence[Axis]) -> None:
    """Both by doubling, with ticks at what was asked."""
    asked = {axis.key: [float(value) for value in axis.values] for axis in axes if axis.numeric}
    plans = [plan for series in drawn for plan in series.plans]
    ends = [*edge(plans, "surely"), *edge(plans, "possibly")]
    for key, ticks, reach in (
        (ISL, axis.xaxis, [point.tokens for point in ends]),
        (CONCURRENCY, axis.yaxis, [point.sequences for point in ends]),
    ):
        ticks.set_label_text(next(a.name for a in axes if a.key == key))
        low, high = min(asked[key]), max([*asked[key], *reach])
        setter = axis.set_xscale if key == ISL else axis.set_yscale
        setter("log", base=2)
        limits = axis.set_xlim if key == ISL else axis.set_ylim
        limits(low / 1.35, high * 1.5)
        ticks.set_ticks(_apart(asked[key]))
        ticks.set_minor_locator(NullLocator())
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _apart(values: Sequence[float]) -> list[float]:
    """Ticks that leave each other room: each at least a quarter above the one before."""
    kept: list[float] = []
    for value in sorted(values):
        if not kept or value >= 1.25 * kept[-1]:
            kept.append(value)
    return kept


def _region(axis: Axes, series: Series, colour: str, *, alone: bool) -> None:
    """The edge of what surely fits, and the band up to what possibly does."""
    surely, possibly = edge(series.plans, "surely"), edge(series.plans, "possibly")
    floor, left = axis.get_ylim()[0], axis.get_xlim()[0]
    if alone:
        green = style.ANSWERS["fits"][0]
        axis.fill_between(*_outline(surely, left, floor), floor, color=green, alpha=0.10, lw=0)
        colour = green
    if possibly != surely:
        amber = style.ANSWERS["depends"][0] if alone else colour
        outline = _outline(possibly, left, floor) + _outline(surely, left, floor)
        axis.fill(
            [*outline[0], *reversed(outline[2])],
            [*outline[1], *reversed(outline[3])],
            color=amber,
            alpha=0.22,
            lw=0,
        )
    _lines(axis, surely, colour)


def _lines(axis: Axes, surely: Sequence[Point], colour: str) -> None:
    """The edge; dashed where an end of the line is no edge, since the question ended there."""
    floor, left = axis.get_ylim()[0], axis.get_xlim()[0]
    if not surely:
        return
    first, last = surely[0], surely[-1]
    start = Point(int(left), first.sequences, first.asked_no_further)
    for one, other in pairwise([start, *surely]):
        slopes = one.sequences != other.sequences
        open_end = slopes and (one.asked_no_further or other.asked_no_further)
        axis.plot(
            [max(one.tokens, left), other.tokens],
            [max(one.sequences, floor), max(other.sequences, floor)],
            color=colour,
            linewidth=1.8,
            linestyle=(0, (2, 1.2)) if open_end else "-",
        )
    axis.plot([last.tokens] * 2, [max(last.sequences, floor), floor], color=colour, linewidth=1.8)


def _outline(points: Sequence[Point], left: float, floor: float) -> tuple[list[float], list[float]]:
    """The edge from the left side of the picture down to its floor."""
    if not points:
        return [left], [floor]
    xs = [left, *(float(point.tokens) for point in points), float(points[-1].tokens)]
    ys = [max(float(point.sequences), floor) for point in points]
    return xs, [ys[0], *ys, floor]


def _limits(axis: Axes, drawn: Sequence[Series]) -> None:
    """Where serve flags and model end what may be asked, if that is in the picture."""
    plans = [plan for series in drawn for plan in series.plans]
    most = {
        plan.limits["max_concurrency"].high for plan in plans if "max_concurrency" in plan.limits
    }
    longest = {plan.limits["max_isl"].high for plan in plans if "max_isl" in plan.limits}
    if len(most) == 1 and max(most) <= axis.get_ylim()[1]:
        (at,) = most
        axis.axhline(at, **DASHED)
        _beside(axis, f"asked up\nto {at:,}", (1.0, at), ("axes fraction", "data"), (4, 0))
    if len(longest) == 1 and max(longest) <= axis.get_xlim()[1]:
        (at,) = longest
        axis.axvline(at, **DASHED)
        _beside(axis, f"asked up to {at:,}", (at, 1.0), ("data", "axes fraction"), (0, 4))


def _beside(
    axis: Axes, said: str, at: tuple[float, float], coords: tuple[str, str], by: tuple[int, int]
) -> None:
    beside = by[0] > 0
    axis.annotate(
        said,
        at,
        xycoords=coords,
        xytext=by,
        textcoords="offset points",
        fontsize=7.5,
        color=style.PALE,
        va="center" if beside else "baseline",
        ha="left" if beside else "center",
    )


def _points(axis: Axes, series: Series) -> None:
    """What the jobs themselves planned, each with its headroom in GiB."""
    for job in series.jobs:
        at = typed(job)
        x, y = float(at[ISL]), float(at[CONCURRENCY])
        if (plan := job.memory) is None:
            axis.plot(x, y, marker="x", color=style.PALE, markersize=5)
            continue
        colour, marker = style.ANSWERS[plan.answer]
        axis.plot(x, y, marker=marker, color=colour, markersize=5.5, zorder=3)
        if len(series.jobs) <= 25:
            axis.annotate(
                _signed(plan.headroom_low),
                (x, y),
                xytext=(0, 5),
                textcoords="offset points",
                ha="center",
                fontsize=7.5,
                color=colour,
                path_effects=[withStroke(linewidth=2.5, foreground="white")],
                zorder=4,
            )


def _signed(num_bytes: int) -> str:
    return ("+" if num_bytes >= 0 else "−") + style.gib(abs(num_bytes))  # noqa: RUF001


def _legend(drawn: Sequence[Series], jobs: Sequence[JobRow]) -> Iterator[Artist]:
    if len(drawn) > 1:
        for colour, series in zip(LINES, drawn, strict=False):
            yield Line2D([], [], color=colour, linewidth=1.8, label=series.name)
        yield Patch(facecolor=style.PALE, alpha=0.3, label="band: depends on a range")
        return
    green = style.ANSWERS["fits"][0]
    label = "the most that surely fit"
    yield Line2D([], [], color=green, linewidth=1.8, label=label)
    if any(_ranged(plan) for plan in drawn[0].plans):
        yield Patch(facecolor=style.ANSWERS["depends"][0], alpha=0.3, label="depends on the range")
    answers: Mapping[str, None] = dict.fromkeys(plan.answer for plan in drawn[0].plans)
    for answer, (colour, marker) in style.ANSWERS.items():
        if answer in answers:
            label = f"planned, {answer}; headroom in GiB"
            yield Line2D([], [], linestyle="", marker=marker, color=colour, label=label)
    if any(job.memory is None for job in jobs):
        yield Line2D([], [], linestyle="", marker="x", color=style.PALE, label="no plan")


def _ranged(plan: MemoryRow) -> bool:
    return any(query.surely != query.possibly for query in plan.limits.values())
