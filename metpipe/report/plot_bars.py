"""One panel of stacked bars: terms, ranges on top, totals, and the budget of each bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import wrap
from typing import Literal

from matplotlib.axes import Axes

from metpipe.report import plot_style as style
from metpipe.report.sweep_record import JobRow, MemoryRow
from metpipe.report.sweep_stacks import Panel, Stack

__all__ = ["Frame", "draw_panel"]

WIDTH = 0.78
"""A bar's, of the one unit that each has."""
ROOM = 0.87
"""A bar taller than this share of the picture has no room for a label above it."""
GAP, LINE = 0.008, 0.06
"""Shares of the picture: between a label and what it is beside, and a line of a label."""
FAST = "\N{NO-BREAK SPACE}"
WORDS = {"USAGE": "refused", "DIED": "died", "INTERRUPTED": "interrupted"}


@dataclass(frozen=True, slots=True)
class Frame:
    """What all panels of a figure share: the bars' labels, their parts, the picture's top (bytes).

    `totals`: written above each bar. `upright`: the labels below the bars are turned. `margin`:
    free bars' widths beside the first and the last. `letters`: as many have room in a line above a
    panel.
    """

    labels: tuple[str, ...]
    stacks: tuple[Stack, ...]
    colours: Mapping[str, str]
    top: float
    totals: bool
    upright: bool
    margin: float
    letters: int
    one_budget: bool


def draw_panel(axis: Axes, panel: Panel, frame: Frame, *, names_budget: bool) -> None:
    """Draw a panel; the last of a row names the budget, where all have the same."""
    style.tidy(axis)
    axis.set_ylim(0, frame.top / style.GIB)
    axis.set_xlim(-0.6 - frame.margin, len(panel.jobs) - 0.4 + frame.margin)
    axis.set_title(_folded(panel.title, frame.letters), loc="left", color=style.INK)
    for x, job in enumerate(panel.jobs):
        if job is None:
            continue
        if job.memory is None:
            _missing(axis, x, job)
            continue
        _bar(axis, x, job.memory, frame)
        _total(axis, x, job.memory, frame)
    _budgets(axis, panel, frame, named=names_budget)
    turn = 90 if frame.upright else 0
    axis.set_xticks(range(len(frame.labels)), frame.labels, rotation=turn)
    axis.tick_params(axis="x", length=0)


def _folded(title: str, letters: int) -> str:
    """The title in lines of so many letters, broken between the values that it names."""
    joined = [part.replace(" ", FAST) for part in title.split(", ")]
    folded = wrap(", ".join(joined), letters, break_on_hyphens=False)
    return "\n".join(folded).replace(FAST, " ")


def _bar(axis: Axes, x: int, memory: MemoryRow, frame: Frame) -> None:
    """The low ends as one stack, then what each range may add, pale."""
    at = 0.0
    for stack in frame.stacks:
        low = stack.of(memory)[0] / style.GIB
        axis.bar(
            x,
            low,
            WIDTH,
            bottom=at,
            color=frame.colours[stack.name],
            hatch=style.HATCHES[stack.status_in(memory)],
            edgecolor="white",
            linewidth=0.4,
        )
        at += low
    for stack in frame.stacks:
        low, high = (end / style.GIB for end in stack.of(memory))
        if high > low:
            axis.bar(
                x,
                high - low,
                WIDTH,
                bottom=at,
                facecolor=frame.colours[stack.name] + "40",
                hatch=style.HATCHES["uncalibrated"],
                edgecolor=frame.colours[stack.name],
                linewidth=0.6,
                linestyle="--",
            )
            at += high - low


def _total(axis: Axes, x: int, memory: MemoryRow, frame: Frame) -> None:
    """The total in GiB above the bar in the colour of its answer, with a mark where it is too much.

    Where the picture ends too soon above the bar, or its budget lies there, it stands elsewhere.
    """
    colour, _ = style.ANSWERS[memory.answer]
    lines = [style.MARKS[memory.answer]]
    if frame.totals:
        low, high = style.gib(memory.low), style.gib(memory.high)
        lines += [high] if low == high else [low, f"– {high}"]  # noqa: RUF001
    cut = memory.high > frame.top
    if cut:
        lines = ["≈", *lines]
    text = "\n".join(filter(None, lines))
    at, edge = _beside_the_budget(memory, frame.top, lines=len(text.splitlines()))
    paper = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.6}
    axis.text(
        x,
        at / style.GIB,
        text,
        ha="center",
        va=edge,
        fontsize=7.5,
        color=colour,
        linespacing=1.05,
        bbox=paper if text else None,
        zorder=4,
    )


def _beside_the_budget(
    memory: MemoryRow, top: float, *, lines: int
) -> tuple[float, Literal["top", "bottom"]]:
    """Where so many lines stand without covering the bar's budget: in bytes, and which edge."""
    gap, tall = GAP * top, (LINE * lines + 2 * GAP) * top
    end, budget = min(memory.high, top), memory.budget
    places: list[tuple[float, Literal["top", "bottom"]]] = [
        (memory.high + gap, "bottom"),
        (end, "top"),
        (budget - gap, "top"),
        (budget + gap, "bottom"),
    ]
    if memory.high > ROOM * top:
        places = places[1:]
    for at, edge in places:
        low, high = (at - tall, at) if edge == "top" else (at, at + tall)
        covers = low - gap / 2 < budget < high + gap / 2
        if low >= 0 and high <= top and not covers:
            return at, edge
    return places[0]


def _missing(axis: Axes, x: int, job: JobRow) -> None:
    word = WORDS.get(job.status, job.status.lower())
    colour = style.ANSWERS["does not fit"][0]
    at = axis.get_ylim()[1] * 0.02
    axis.text(x, at, word, rotation=90, ha="center", va="bottom", fontsize=8, color=colour)


def _budgets(axis: Axes, panel: Panel, frame: Frame, *, named: bool) -> None:
    """A line over each bar at its own budget; one that lies above the picture is named only."""
    at = [(x, job.memory.budget) for x, job in enumerate(panel.jobs) if job and job.memory]
    for x, budget in at:
        axis.hlines(budget / style.GIB, x - 0.5, x + 0.5, color=style.INK, linewidth=1.4, zorder=3)
    if len({budget for _, budget in at}) > 1:
        for x, budget in at:
            _above(axis, x, budget, frame)
    elif named or not frame.one_budget:
        _beside(axis, at[0][1], frame)


def _above(axis: Axes, x: int, budget: int, frame: Frame) -> None:
    """A bar's own budget: above the right end of its line, or at the picture's top.

    Over narrow bars it is turned, as their labels are.
    """
    said, far = style.gib(budget), budget > frame.top
    if not frame.totals:
        at, where, words = min(budget, frame.top), x + 0.5, f"↑ {said}" if far else said
    elif far:
        at, where, words = frame.top, x + 0.0, f"budget\n↑ {said}"
    else:
        at, where, words = budget + 0.006 * frame.top, x + 0.48, said
    axis.text(
        where,
        at / style.GIB,
        words,
        ha="center" if far and frame.totals else "right",
        va="top" if far else "bottom",
        rotation=0 if frame.totals else 90,
        fontsize=7,
        zorder=5,
    )


def _beside(axis: Axes, budget: int, frame: Frame) -> None:
    """The budget of a whole panel, to its right."""
    far = budget > frame.top
    axis.annotate(
        f"{'↑ ' if far else ''}budget\n{style.gib(budget)}",
        (1.0, min(budget, frame.top) / style.GIB),
        xycoords=("axes fraction", "data"),
        xytext=(3, 0),
        textcoords="offset points",
        va="top" if far else "center",
        fontsize=7.5,
    )
