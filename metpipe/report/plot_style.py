"""How the plots of a sweep look: colours by what a term is, hatches by its status, sizes in GiB."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from metpipe.memory.report import Answer, Status

__all__ = [
    "ANSWERS",
    "GIB",
    "HATCHES",
    "INK",
    "MARKS",
    "PALE",
    "RC",
    "colours",
    "gib",
    "sheet",
    "tidy",
]

GIB = 1 << 30
INK = "#222222"
PALE = "#8a8a8a"

RC: Mapping[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "axes.titlesize": 9.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "hatch.linewidth": 0.7,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
"""matplotlib's settings, the same on every machine whatever the user's own are."""

TERMS: Mapping[str, str] = {
    "weights": "#33608c",
    "outside": "#7f9fc0",
    "copies": "#b07aa1",
    "driver": "#8c8c8c",
    "arena": "#4f9d8f",
    "two_phase": "#94c9b5",
    "workspace": "#c2dfd3",
    "tables": "#d9c58b",
    "step": "#bfa66a",
    "states": "#59a14f",
    "snapshots": "#9fcf8a",
    "carry": "#86bcb6",
    "speculation": "#d37295",
    "kv": "#e8923a",
    "other": "#d0d0d0",
}
SPARE = ("#edc948", "#9c755f", "#ff9da7", "#6b6ecf", "#a0cbe8")

HATCHES: Mapping[Status, str] = {"exact": "", "calibrated": "", "uncalibrated": "////"}

ANSWERS: Mapping[Answer, tuple[str, str]] = {
    "fits": ("#2f7d32", "o"),
    "depends": ("#d08700", "D"),
    "does not fit": ("#c62828", "X"),
}
"""Colour and marker of what a plan comes to."""
MARKS: Mapping[Answer, str] = {"fits": "", "depends": "?", "does not fit": "✕"}


def colours(terms: Iterable[str]) -> dict[str, str]:
    """A colour for each term; the same term has the same one in every plot."""
    spare = iter(SPARE * 8)
    return {term: TERMS.get(term) or next(spare) for term in terms}


def gib(num_bytes: float) -> str:
    """Bytes in GiB to three digits; no unit."""
    size = num_bytes / GIB
    if abs(size) >= 100:
        return f"{size:,.0f}"
    return f"{size:.3g}" if abs(size) < 10 else f"{size:.1f}"


def tidy(axes: Axes) -> None:
    """No frame but the axes themselves, faint lines behind the data."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(axis="y", color="#e4e4e4", linewidth=0.6)


HEADER_IN, LINE_IN, ENTRY_IN = 0.42, 0.18, 0.2
LETTER_IN = 0.068


def sheet(
    width: float, body: float, headline: str, lines: Sequence[str], legend: Sequence[Artist]
) -> Figure:
    """A figure with a heading, lines below it, and a legend at its foot; sizes in inches.

    The axes that are added to it share the middle, `body` inches high.
    """
    columns = _columns(width, legend)
    head = HEADER_IN + LINE_IN * len(lines)
    foot = 0.06 + ENTRY_IN * math.ceil(len(legend) / columns)
    height = head + body + foot
    middle = (0.0, foot / height, 1.0, body / height)
    layout = ConstrainedLayoutEngine(rect=middle, w_pad=0.06, h_pad=0.04)
    figure = Figure(figsize=(width, height), layout=layout, dpi=150)
    left = 0.12 / width
    figure.text(left, 1 - 0.12 / height, headline, fontsize=12, weight="bold", va="top")
    for number, line in enumerate(lines):
        at = 1 - (HEADER_IN + LINE_IN * number) / height
        figure.text(left, at, line, fontsize=8, color=PALE, va="top")
    figure.legend(
        handles=list(legend),
        loc="lower left",
        bbox_to_anchor=(left, 0.02 / height),
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.0,
        borderpad=0.1,
        columnspacing=1.4,
        labelspacing=0.45,
    )
    return figure


def _columns(width: float, legend: Sequence[Artist]) -> int:
    """As many legend columns as the longest label leaves room for."""
    longest = max(len(str(entry.get_label())) for entry in legend)
    return max(1, min(len(legend), int((width - 0.3) / (0.65 + LETTER_IN * longest))))
