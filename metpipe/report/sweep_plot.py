"""The plots of a sweep, as PNG files beside its sweep.json; matplotlib draws them where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from metpipe.report.picture_file import write_picture
from metpipe.report.sweep_axes import axes
from metpipe.report.sweep_record import SweepRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FRONTIER", "TERMS", "draw", "worth_drawing"]

TERMS = "sweep.png"
FRONTIER = "frontier.png"


def worth_drawing(sweep: SweepRecord) -> bool:
    """Whether the plans of its jobs differ in what they come to, or what they may."""
    plans = [job.memory for job in sweep.jobs if job.memory is not None]
    sizes = {(plan.low, plan.high, plan.budget) for plan in plans}
    return bool(axes(sweep.jobs)) and len(sizes) > 1


def draw(sweep: SweepRecord, sweep_dir: Path) -> list[Path]:
    """Write the plots that the sweep is good for, each whole, and return where they are."""
    return [write_picture(figure, sweep_dir / name) for name, figure in _figures(sweep)]


def _figures(sweep: SweepRecord) -> Iterator[tuple[str, Callable[[], Figure]]]:
    # Here, not above: they import matplotlib, which needs not be installed.
    from metpipe.report import plot_frontier, plot_terms

    swept = axes(sweep.jobs)
    yield TERMS, lambda: plot_terms.draw(sweep.jobs, swept)
    if plot_frontier.has_frontier(swept):
        yield FRONTIER, lambda: plot_frontier.draw(sweep.jobs, swept)
