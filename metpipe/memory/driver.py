"""What the driver takes of a device: nothing, what a law says, or a range.

A law is calibrated on boots of one engine, one rank each, on the devices that it names. Whatever
else is planned on a device of its class is a range, and says what is missing.
"""

from __future__ import annotations

from metpipe.memory import formulas
from metpipe.memory.devices import DriverFloor, DriverLaw
from metpipe.memory.point import Point
from metpipe.memory.report import Term

__all__ = ["CONTEXT", "doubt_of", "driver_term", "law_of", "sibling_of"]

CONTEXT = DriverFloor(475 * 2**20, "a probe of gb10: context 250, modules 94, local memory 131 MiB")
"""Where the range of a device begins on whose class nobody saw less."""

UNCALIBRATED_FIXED_BYTES = 2**30
UNCALIBRATED_PER_MILLE = 21
"""gb10's law is the upper end for a device that nobody calibrated."""


def law_of(point: Point) -> DriverLaw | None:
    """The law of the device's class, where it was calibrated for what is planned; else None."""
    return None if doubt_of(point) else point.device.driver


def sibling_of(point: Point) -> DriverLaw | None:
    """The law of the same engine, one rank, on another device of the class; else None.

    The same kernels and modules: what they took there is the most that is expected here.
    """
    law = point.device.driver
    if law is None or law.accounting != point.accounting or point.parallel is not None:
        return None
    return None if point.device.id in law.calibrated_devices else law


def doubt_of(point: Point) -> str:
    """Why the law of the class is not calibrated for what is planned; empty where it is."""
    device, law = point.device, point.device.driver
    if law is None:
        return f"nobody calibrated {device.device_class}: the class declares no [memory] table"
    of_law = f"the law of {device.device_class} was calibrated on {law.accounting}'s engine"
    if law.accounting != point.accounting:
        return f"{of_law}, and nobody calibrated {point.accounting}'s there"
    if point.parallel is not None:
        return f"{of_law} with one rank, and nobody calibrated one of several"
    if device.id not in law.calibrated_devices:
        return f"{of_law} on {', '.join(law.calibrated_devices)}, and nobody has on {device.id}"
    return ""


def driver_term(point: Point, budget: int) -> Term:
    """What the driver takes: nothing on a CPU, a calibrated law, or a stated range."""
    if point.device.kind == "cpu":
        return Term("driver", 0, 0, "exact", "nothing is charged on a CPU")
    law = law_of(point)
    if law is None:
        return _range(point, budget)
    slack = 0 if point.met is None else point.met.chunk_slack
    size = formulas.driver_bytes(budget, law.fixed_bytes, law.budget_per_mille, slack)
    return Term("driver", size, size, "calibrated", f"{_formula(law)}, {_boots(law)}")


def _range(point: Point, budget: int) -> Term:
    """From what a context takes to the largest law that may speak of the plan."""
    floor = point.device.driver_floor or CONTEXT
    high, of_high = _most(point, budget)
    low = min(floor.at_least_bytes, high)
    source = f"{doubt_of(point)}; from {low} bytes ({floor.seen_on}) to {of_high}"
    return Term("driver", low, high, "uncalibrated", source)


def _most(point: Point, budget: int) -> tuple[int, str]:
    """A sibling's law; else the larger of gb10's and of the class's own, whose ever it is."""
    law, sibling = point.device.driver, sibling_of(point)
    if sibling is not None:
        return _bytes(sibling, budget), f"{_formula(sibling)}, {_boots(sibling)}"
    general = formulas.driver_bytes(budget, UNCALIBRATED_FIXED_BYTES, UNCALIBRATED_PER_MILLE)
    said = f"1 GiB + floor(budget / 1000) x {UNCALIBRATED_PER_MILLE}, the law of gb10"
    if law is None or _bytes(law, budget) <= general:
        return general, said
    return _bytes(law, budget), f"{_formula(law)}, {_boots(law)}"


def _bytes(law: DriverLaw, budget: int) -> int:
    return formulas.driver_bytes(budget, law.fixed_bytes, law.budget_per_mille)


def _formula(law: DriverLaw) -> str:
    return f"{law.fixed_bytes} + floor(budget / 1000) x {law.budget_per_mille}"


def _boots(law: DriverLaw) -> str:
    return f"calibrated on {law.calibrated_on}"
