"""What a serve holds on a GPU beside what this engine allocates: captured graphs, collectives.

Nobody has measured either for this engine. The ends of both ranges are what people posted of
another engine's start-ups; each source says which.
"""

from __future__ import annotations

from metpipe.memory.point import Point
from metpipe.memory.report import Term

__all__ = ["collectives_term", "graphs_term"]

GIB = 2**30
GRAPHS_BYTES = int(4.08 * GIB)
COLLECTIVES_BYTES = int((2.1 - 0.25) * GIB)


def graphs_term(point: Point) -> Term:
    """Captured launches: none in eager mode or on a CPU, in the driver's part where calibrated."""
    if point.device.kind == "cpu":
        return Term("graphs", 0, 0, "exact", "a CPU captures no launches")
    if point.serve.graphs is False:
        return Term("graphs", 0, 0, "exact", "serve.graphs=false: nothing is captured")
    if point.device.driver is not None:
        source = f"in the driver's fixed part, calibrated on {point.device.driver.calibrated_on}"
        return Term("graphs", 0, 0, "calibrated", source)
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
