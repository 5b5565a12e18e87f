"""The stacked terms of a sweep's plans against the budget, a panel per value of other keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from metpipe.nouns import number_of
from metpipe.report import plot_style as style
from metpipe.report.plot_bars import Frame, draw_panel
from metpipe.report.plot_words import headline, subtitle, value_label
from metpipe.report.sweep_axes import Axis
from metpipe.report.sweep_record import JobRow, MemoryRow
from metpipe.report.sweep_stacks import MAX_PANELS, Panel, Stack, along_of, panels, stacks

__all__ = ["draw"]

LABELLED_BARS = 12
"""Up to so many bars side by side, each has its total written above it."""
BAR_IN, NARROW_BAR_IN, WIDEST_BAR_IN = 0.55, 0.27, 1.6
LETTER_IN, LONG_LABEL_IN = 0.078, 1.2
"""Of a label below the bars; one that is longer than that stands upright."""
PAGE_IN, WIDE_PAGE_IN, NARROWEST_IN = 13.5, 16.5, 6.4
MOST_ROWS = 4
"""Where there would be more rows of panels, the page is the wide one."""
PANEL_IN = 2.9
TITLE_LETTER_IN = 0.082
TOO_TALL, CUT = 3.0, 2.0
"""Where a bar is so many budgets tall, the picture ends at two: the budget must be seen."""
FAR = 4.0
"""A budget above so many times the tallest bar is named, not drawn."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The grid of panels, in inches; `upright` are the labels, which only the lowest have then."""

    columns: int
    rows: int
    width: float
    panel: float
    upright: bool
    height: float


def draw(jobs: Sequence[JobRow], axes: Sequence[Axis]) -> Figure:
    """The figure of a sweep of which at least one job has a plan."""
    along = along_of(axes)
    shown = panels(jobs, axes, along)
    plans = [plan for panel in shown for plan in panel.plans]
    top = _top(plans)
    found = stacks(plans, top)
    layout = _layout([panel.title for panel in shown], along)
    lines = [*subtitle(jobs, layout.width), *_small(found), *_left_out(jobs, shown)]
    figure = style.sheet(
        layout.width,
        layout.height,
        headline(jobs, axes, "memory, term by term"),
        lines,
        list(_legend(found, plans, top)),
    )
    grid = figure.subplots(layout.rows, layout.columns, sharey=True, squeeze=False)
    frame = _frame(along, found, plans, layout, top)
    for place, axis in enumerate(grid.flat):
        if place >= len(shown):
            axis.set_visible(False)
            continue
        last = (place + 1) % layout.columns == 0 or place + 1 == len(shown)
        lowest = place + layout.columns >= len(shown)
        draw_panel(axis, shown[place], frame, names_budget=last)
        axis.tick_params(labelbottom=lowest or not layout.upright)
        axis.set_xlabel(along.name if lowest else "")
        axis.set_ylabel("GiB" if place % layout.columns == 0 else "")
    return figure


def _top(plans: Sequence[MemoryRow]) -> float:
    """The top of the picture in bytes: above the tallest bar, or cut there; above a near budget."""
    tallest, budget = max(plan.high for plan in plans), max(plan.budget for plan in plans)
    if budget >= FAR * tallest:
        return tallest * 1.35
    if tallest > TOO_TALL * budget:
        return CUT * budget
    return max(tallest * 1.17, budget * 1.12)


def _layout(titles: Sequence[str], along: Axis) -> Layout:
    """Room for every bar, its label, and the longest value that a title names: none is broken."""
    count, bars = len(titles), len(along.values)
    label = 0.15 + LETTER_IN * max(len(label) for label in _labels(along))
    upright = bars > LABELLED_BARS or label > LONG_LABEL_IN
    bar = NARROW_BAR_IN if bars > LABELLED_BARS else BAR_IN if upright else max(BAR_IN, label)
    named = max(len(part) for title in titles for part in title.split(", "))
    panel = max(2.2, bar * bars + 0.3, TITLE_LETTER_IN * (named + 1))
    columns = _columns(count, panel)
    rows = math.ceil(count / columns)
    columns = math.ceil(count / rows)
    width = max(NARROWEST_IN, columns * panel + 1.2)
    labelled = 1 if rows == 1 or count % columns == 0 else 2
    height = PANEL_IN * rows + (label * labelled if upright else 0.0)
    return Layout(columns, rows, width, (width - 1.2) / columns, upright, height)


def _columns(count: int, panel: float) -> int:
    """As many panels side by side as a page is wide; of many, as a wide one is."""
    columns = max(1, min(count, int(PAGE_IN // panel)))
    if math.ceil(count / columns) <= MOST_ROWS:
        return columns
    return max(1, min(count, int(WIDE_PAGE_IN // panel)))


def _frame(
    along: Axis, found: Sequence[Stack], plans: Sequence[MemoryRow], layout: Layout, top: float
) -> Frame:
    labels = _labels(along)
    return Frame(
        labels=tuple(labels),
        stacks=tuple(found),
        colours=style.colours(stack.name for stack in found),
        top=top,
        totals=len(labels) <= LABELLED_BARS,
        upright=layout.upright,
        letters=int(layout.panel / TITLE_LETTER_IN),
        margin=max(0.0, (layout.panel / WIDEST_BAR_IN - len(labels)) / 2),
        one_budget=len({plan.budget for plan in plans}) == 1,
    )


def _labels(along: Axis) -> list[str]:
    return [value_label(along.key, value, short=True) for value in along.values]


def _small(found: Sequence[Stack]) -> list[str]:
    small = [name for stack in found if stack.name == "other" for name in sorted(stack.ids)]
    return [f"other: {', '.join(small)}"] if small else []


def _left_out(jobs: Sequence[JobRow], shown: Sequence[Panel]) -> list[str]:
    drawn = {job.job for panel in shown for job in panel.jobs if job is not None}
    rest = [job for job in jobs if job.job not in drawn]
    planned = sum(job.memory is not None for job in rest)
    said = (
        [f"{number_of(len(rest) - planned, 'job')} without a plan"] if len(rest) > planned else []
    )
    if planned:
        said.append(f"{number_of(planned, 'job')} beyond the first {MAX_PANELS} panels")
    return [f"not drawn: {' and '.join(said)}"] if said else []


def _legend(found: Sequence[Stack], plans: Sequence[MemoryRow], top: float) -> Iterator[Artist]:
    colours: Mapping[str, str] = style.colours(stack.name for stack in found)
    for stack in reversed(found):
        yield Patch(
            facecolor=colours[stack.name],
            hatch=style.HATCHES[stack.status],
            edgecolor="white",
            label=f"{stack.name}: {stack.status}{' in part' if stack.in_part else ''}",
        )
    if any(plan.high > plan.low for plan in plans):
        yield Patch(
            facecolor=style.PALE + "30",
            hatch=style.HATCHES["uncalibrated"],
            edgecolor=style.PALE,
            linestyle="--",
            label="up to a range's end",
        )
    yield Line2D([], [], color=style.INK, linewidth=1.4, label="budget")
    answers = {plan.answer for plan in plans}
    for answer, mark in style.MARKS.items():
        if mark and answer in answers:
            colour, _ = style.ANSWERS[answer]
            yield Line2D(
                [], [], linestyle="", marker=f"${mark}$", markersize=6, color=colour, label=answer
            )
    if any(plan.high > top for plan in plans):
        yield Line2D(
            [], [], linestyle="", marker="$≈$", markersize=8, color=style.INK, label="cut here"
        )
