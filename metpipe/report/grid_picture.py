"""The picture of a grid, in the run's folder."""

from __future__ import annotations

from pathlib import Path

from metpipe.report.grid_section import GridSection
from metpipe.report.picture_file import MISSING, can_draw, write_picture

__all__ = ["PICTURE", "draw_grid"]

PICTURE = "grid.png"


def draw_grid(grid: GridSection, model: str, out_dir: Path) -> str:
    """Draw it where there is something to see; say where it is, or why it is not there."""
    if not grid.has_picture:
        return ""
    if not can_draw():
        return MISSING
    # Here, not above: it imports matplotlib, which needs not be installed.
    from metpipe.report import plot_grid

    return str(write_picture(lambda: plot_grid.draw(grid, model), out_dir / PICTURE))
