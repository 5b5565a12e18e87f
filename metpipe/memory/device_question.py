"""The question for the smallest device: which of the registry's a plan can be made on at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metpipe.memory.devices import DeviceRefusal
from metpipe.memory.evaluate import headroom_at
from metpipe.memory.inverse import Question
from metpipe.memory.point import Point
from metpipe.memory.reboot import rebooted

__all__ = ["device_question"]


def device_question(point: Point, candidates: Sequence[Point]) -> Question:
    """Which device of least memory would do; `candidates` are the point on each.

    Raises:
        ConfigError: what no device would mend.
    """
    refusals = {other.device.id: _refusal(other) for other in candidates}
    possible = [other for other in candidates if not refusals[other.device.id]]
    ordered = sorted(possible, key=lambda other: -(other.device.memory_bytes or 0))
    by_id = {other.device.id: other for other in ordered}
    as_registered = [f"hardware.{fact}=null" for fact in point.device.replaced]
    return Question(
        "min_device",
        "least",
        tuple(by_id),
        lambda value: rebooted(by_id[str(value)]),
        lambda value: " ".join((f"hardware={str(value).replace('-', '_')}", *as_registered)),
        now=_listed(point, by_id),
        why="" if by_id else "the flags refuse every device of the registry",
        in_order=False,
        left_out=_by_reason(refusals),
    )


def _listed(point: Point, candidates: Mapping[str, Point]) -> str:
    """The point's device among the candidates; empty for one of its own, or of another size."""
    same = candidates.get(point.device.id)
    return point.device.id if same is not None and same.device == point.device else ""


def _refusal(point: Point) -> str:
    """Why no plan can be made on the point's device; empty where one can.

    Raises:
        ConfigError: what no device would mend.
    """
    try:
        headroom_at(point)
    except DeviceRefusal as refusal:
        return refusal.why
    return ""


def _by_reason(refusals: Mapping[str, str]) -> Mapping[str, tuple[str, ...]]:
    """Reason -> the devices that it is of."""
    reasons = dict.fromkeys(why for why in refusals.values() if why)
    return {why: tuple(key for key, said in refusals.items() if said == why) for why in reasons}
