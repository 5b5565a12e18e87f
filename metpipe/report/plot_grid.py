"""A grid of loads as a picture: headroom over prompts and sequences, and the edge of what fits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

from metpipe.report import plot_style as style
from metpipe.report.grid_section import GridSection
from metpipe.report.grid_tables import spread

__all__ = ["MAX_PANELS", "draw"]

MAX_PANELS = 4
COLOURS = "RdYlGn"
ACROSS = 2
TICKS = 7
NOTHING = 1e-3
"""GiB: what a half of the colours spans where no load lies in it."""
PANEL_IN = 3.6


def draw(grid: GridSection, model: str) -> Figure:
    """A panel for each output; an axis that does not rise evenly is shown by doubling."""
    outputs = grid.osl[:MAX_PANELS]
    left = len(grid.osl) - len(outputs)
    lines = ["worst headroom in GiB, budget " + style.gib(grid.budget)]
    if left:
        lines.append(f"{left} more outputs are not drawn")
    rows = math.ceil(len(outputs) / ACROSS)
    legend = list(_legend(grid))
    title = f"{model} on {grid.device}: which loads fit"
    figure = style.sheet(8.0, PANEL_IN * rows, title, lines, legend)
    panels = figure.subplots(rows, min(ACROSS, len(outputs)), squeeze=False).ravel()
    norm = _norm(_cube(grid, grid.headroom_low)[: len(outputs)], grid.budget)
    for panel, output in zip(panels, range(len(outputs)), strict=False):
        _panel(panel, grid, output, norm)
    for panel in panels[len(outputs) :]:
        panel.set_visible(False)
    shown = [panel for panel in panels if panel.get_visible()]
    bar = figure.colorbar(ScalarMappable(norm, COLOURS), ax=shown, fraction=0.04, pad=0.02)
    ticks = list(_ticks(norm))
    bar.set_ticks(ticks, labels=[style.gib(tick * style.GIB) for tick in ticks])
    return figure


def _cube(grid: GridSection, rooms: Sequence[int | None]) -> np.ndarray:
    """[outputs, sequences, prompts] in GiB; NaN where the serve takes no such load."""
    flat = np.array([np.nan if room is None else room / style.GIB for room in rooms])
    return flat.reshape(len(grid.osl), len(grid.concurrency), len(grid.isl))


def _norm(rooms: np.ndarray, budget: int) -> TwoSlopeNorm:
    """Zero in the middle; nothing more over budget than a budget has a colour of its own."""
    reach = budget / style.GIB
    low, high = float(np.nanmin(rooms)), float(np.nanmax(rooms))
    return TwoSlopeNorm(0.0, min(max(low, -reach), -NOTHING), max(high, NOTHING))


def _ticks(norm: TwoSlopeNorm) -> Iterator[float]:
    """Zero, both ends and the middles: each half is as long as the other, whatever it spans.

    A half that no load lies in has none.
    """
    low, high = norm.vmin or 0.0, norm.vmax or 0.0
    if low < -NOTHING:
        yield from (low, low / 2)
    yield 0.0
    if high > NOTHING:
        yield from (high / 2, high)


def _panel(axis: Axes, grid: GridSection, output: int, norm: TwoSlopeNorm) -> None:
    low = _cube(grid, grid.headroom_low)[output]
    high = _cube(grid, grid.headroom_high)[output]
    axis.pcolormesh(grid.isl, grid.concurrency, low, norm=norm, cmap=COLOURS, shading="nearest")
    for rooms, dashes in ((low, "solid"), (high, "dashed")):
        if np.nanmin(rooms) < 0 <= np.nanmax(rooms):
            edge = np.ma.masked_invalid(rooms)
            axis.contour(
                grid.isl, grid.concurrency, edge, [0.0], colors=style.INK, linestyles=dashes
            )
    _scales(axis, grid)
    axis.set_title(f"{grid.osl[output]:,} generated", loc="left")
    axis.set_xlabel("prompt tokens")
    axis.set_ylabel("sequences at once")
    axis.set_facecolor("#e9e9e9")
    axis.spines[["top", "right"]].set_visible(False)


def _scales(axis: Axes, grid: GridSection) -> None:
    """By doubling where the values do not rise evenly, with ticks at them."""
    for values, ticks, scaled in (
        (grid.isl, axis.xaxis, axis.set_xscale),
        (grid.concurrency, axis.yaxis, axis.set_yscale),
    ):
        if len(set(np.diff(values))) > 1:
            scaled("log", base=2)
            ticks.set_ticks([float(value) for value in spread(values, TICKS)])
        ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _legend(grid: GridSection) -> Iterator[Artist]:
    yield Line2D([], [], color=style.INK, label=f"edge of what surely fits{_nowhere(grid)}")
    if grid.headroom_low != grid.headroom_high:
        label = "edge of what possibly fits"
        yield Line2D([], [], color=style.INK, linestyle="dashed", label=label)
    if None in grid.headroom_low:
        yield Patch(facecolor="#e9e9e9", label="beyond what the serve takes")


def _nowhere(grid: GridSection) -> str:
    """Why there is no edge to see, where there is none."""
    found = set(grid.answers()) - {None}
    if "fits" not in found:
        return ": nothing does"
    return ": everything does" if found == {"fits"} else ""
