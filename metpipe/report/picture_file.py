"""Writes pictures: by matplotlib where it is, with settings of our own, each file whole."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MISSING", "can_draw", "write_picture"]

MISSING = "no picture: matplotlib is not there; pip install 'metpipe[plot]' brings it"


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return find_spec("matplotlib") is not None


def write_picture(figure: Callable[[], Figure], path: Path) -> Path:
    """Draw a figure and write it as a PNG; return where it is."""
    # Here, not above: a run has no use for it, and it needs not be installed.
    import matplotlib as mpl

    from metpipe.report.plot_style import RC

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        return _save(figure(), path)


def _save(figure: Figure, path: Path) -> Path:
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.partial.png")
    try:
        figure.savefig(scratch, metadata={"Software": "metpipe"})
        scratch.replace(path)
    finally:
        with suppress(OSError):
            scratch.unlink(missing_ok=True)
    return path
