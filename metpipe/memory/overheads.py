"""What a serve holds on a GPU beside what this engine allocates: captured graphs, collectives.

Graphs were measured with the driver's part, on one device. For all else of this engine nobody
measured either: both ranges end at the most that people posted of another engine's start-ups, which
bounds nothing; each source says which.
"""

from __future__ import annotations

from metpipe.memory.driver import law_of, sibling_of
from metpipe.memory.point import Point
from metpipe.memory.report import Term

__all__ = ["collectives_term", "graphs_term"]

GIB = 2**30
GRAPHS_BYTES = int(4.08 * GIB)
COLLECTIVES_BYTES = int((2.1 - 0.25) * GIB)


def graphs_term(point: Point) -> Term:
    """Captured launches: none in eager mode or on a CPU, else in the driver's part or a range.

    In the driver's part where boots of this engine gave it: they captured theirs.
    """
    if point.device.kind == "cpu":
        return Term("graphs", 0, 0, "exact", "a CPU captures no launches")
    if point.serve.graphs is False:
        return Term("graphs", 0, 0, "exact", "serve.graphs=false: nothing is captured")
    if (law := law_of(point)) is not None:
        source = f"in the driver's fixed part, calibrated on {law.calibrated_on}"
        return Term("graphs", 0, 0, "calibrated", source)
    if (law := sibling_of(point)) is not None:
        source = f"in the upper end of the driver's part, calibrated on {law.calibrated_on}"
        return Term("graphs", 0, 0, "uncalibrated", source)
    source = (
        "nobody measured this engine's: up to 4.08 GiB, the most of 50 start-ups posted of another "
        "engine (their median is 0.62 GiB); serve.graphs=false captures none"
    )
    return Term("graphs", 0, GRAPHS_BYTES, "uncalibrated", source)


def collectives_term(point: Point) -> Term | None:
    """Buffers of the library by which GPUs exchange rows; None for one rank."""
    if point.parallel is None:
        return None
    if point.device.kind == "cpu":
        source = "nobody measured this engine's: ranks on CPUs are taken to hold none"
        return Term("collectives", 0, 0, "uncalibrated", source)
    source = (
        "nobody measured this engine's: up to 1.85 GiB, the most that start-ups posted of another "
        "engine hold on each of several GPUs (2.1 GiB) more than on one (0.25 GiB)"
    )
    return Term("collectives", 0, COLLECTIVES_BYTES, "uncalibrated", source)
