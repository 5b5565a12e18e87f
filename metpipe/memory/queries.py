"""The inverse questions of a plan: one setting each, everything else as it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from metpipe.errors import ConfigError
from metpipe.memory.device_question import device_question
from metpipe.memory.inverse import Inverse, Question, Value, answered
from metpipe.memory.met.held import counts_at
from metpipe.memory.point import Point
from metpipe.memory.reboot import (
    rebooted,
    with_snapshot_slots,
    with_verify_width,
    without_snapshots,
    without_verify,
)
from metpipe.memory.speculation import num_drafts

__all__ = [
    "QUERIES",
    "max_concurrency",
    "max_isl",
    "max_osl",
    "max_slots",
    "max_snapshot_slots",
    "max_verify",
    "min_device",
    "min_utilization",
    "questions",
]

MOST_SLOTS = 1 << 16
MOST_SNAPSHOTS = 1 << 16
"""Beyond any pool that a device of the registry holds."""

WIDEST_VERIFY = 8
"""Rows of one sequence in a verify: the deepest that the diff runs."""

SHARES = 1000
"""Utilisations are asked in steps of a thousandth."""


def max_concurrency(point: Point) -> Inverse:
    """The most sequences that fit at the point's ISL and OSL: 1 .. its slots (128 if they follow).

    Raises:
        ConfigError: as `evaluate` at one sequence.
    """
    return answered(concurrency_question(point))


def max_isl(point: Point) -> Inverse:
    """The longest prompt that fits at the point's concurrency and OSL.

    Raises:
        ConfigError: as `evaluate` at a prompt of one token.
    """
    return answered(isl_question(point))


def max_osl(point: Point) -> Inverse:
    """The longest output that fits at the point's concurrency and ISL.

    Raises:
        ConfigError: as `evaluate` at an output of one token.
    """
    return answered(osl_question(point))


def max_slots(point: Point) -> Inverse:
    """The most state slots that fit at the point's load, from one for each of its sequences.

    Raises:
        ConfigError: as `evaluate`.
    """
    return answered(slots_question(point))


def max_snapshot_slots(point: Point) -> Inverse:
    """The most snapshots of recurrent state that a prefix cache may keep.

    Raises:
        ConfigError: as `evaluate`.
    """
    return answered(snapshots_question(point))


def max_verify(point: Point) -> Inverse:
    """The widest verify K (its drafts and one) of every sequence of the load.

    Raises:
        ConfigError: as `evaluate`.
    """
    return answered(verify_question(point))


def min_utilization(point: Point) -> Inverse:
    """The smallest share of the device's memory in which the load fits, in thousandths.

    Raises:
        ConfigError: as `evaluate` at the largest share.
    """
    return answered(utilization_question(point))


def min_device(point: Point, candidates: Sequence[Point]) -> Inverse:
    """The device of least memory on which the load fits; a candidate is the point on a device.

    Raises:
        ConfigError: as `evaluate` on the largest.
    """
    return answered(device_question(point, candidates))


def concurrency_question(point: Point) -> Question:
    """See `max_concurrency`."""
    return Question(
        "max_concurrency",
        "most",
        _up_to("max_concurrency", point.widest),
        lambda value: _loaded(point, concurrency=value),
        lambda value: f"workload.concurrency={value}",
        now=point.workload.concurrency,
    )


def isl_question(point: Point) -> Question:
    """See `max_isl`."""
    return Question(
        "max_isl",
        "most",
        _up_to("max_isl", max(1, point.longest - point.workload.osl)),
        lambda value: _loaded(point, isl=value),
        lambda value: f"workload.isl={value}",
        now=point.workload.isl,
    )


def osl_question(point: Point) -> Question:
    """See `max_osl`."""
    return Question(
        "max_osl",
        "most",
        _up_to("max_osl", max(1, point.longest - point.workload.isl)),
        lambda value: _loaded(point, osl=value),
        lambda value: f"workload.osl={value}",
        now=point.workload.osl,
    )


def slots_question(point: Point) -> Question:
    """See `max_slots`."""
    sized = point.accounting != "metpipe" or _has_recurrent(point)
    return Question(
        "max_slots",
        "most",
        range(point.workload.concurrency, MOST_SLOTS + 1),
        lambda value: replace(point, slots=_int(value), slots_follow=False),
        lambda value: f"slots={value}",
        now=None if point.slots_follow else point.num_slots,
        why="" if sized else "slots size nothing: the model keeps no recurrent state",
    )


def snapshots_question(point: Point) -> Question:
    """See `max_snapshot_slots`."""
    caching = _caching(point)
    return Question(
        "max_snapshot_slots",
        "most",
        range(MOST_SNAPSHOTS + 1),
        lambda value: with_snapshot_slots(point, _int(value)),
        lambda value: f"serve.ssm_cache_slots={value} {caching}".rstrip(),
        now=None if point.met is None else point.met.flags.ssm_cache_slots,
        why=without_snapshots(point),
        beside=caching,
    )


def verify_question(point: Point) -> Question:
    """See `max_verify`."""
    return Question(
        "max_verify",
        "most",
        range(2, WIDEST_VERIFY + 1),
        lambda value: with_verify_width(point, _int(value)),
        lambda value: f"serve.num_drafts={_int(value) - 1}",
        now=_verify_width(point),
        why=without_verify(point),
        beside="" if point.serve.speculative else "serve.speculative=true",
    )


def utilization_question(point: Point) -> Question:
    """See `min_utilization`."""
    return Question(
        "min_utilization",
        "least",
        tuple(share / SHARES for share in range(_largest_share(point), 0, -1)),
        lambda value: rebooted(
            replace(point, serve=replace(point.serve, gpu_memory_utilization=float(value)))
        ),
        lambda value: f"serve.gpu_memory_utilization={value}",
        now=point.serve.gpu_memory_utilization,
    )


QUERIES: tuple[Callable[[Point], Question], ...] = (
    concurrency_question,
    isl_question,
    osl_question,
    slots_question,
    snapshots_question,
    verify_question,
    utilization_question,
)


def questions(point: Point, candidates: Sequence[Point]) -> tuple[Question, ...]:
    """Every inverse question about a point; `candidates` are the point on other devices."""
    return (*(query(point) for query in QUERIES), device_question(point, candidates))


def _verify_width(point: Point) -> int | None:
    """Rows of one sequence in the serve's own verify; None where it has none."""
    if not point.serve.speculative:
        return None
    return num_drafts(point) + 1 if point.met is None else counts_at(point).verify_width


def _caching(point: Point) -> str:
    """What must be typed beside a number of snapshots for the cache that keeps them."""
    keeps = point.met is None or point.met.flags.enable_prefix_caching
    return "" if keeps else "serve.enable_prefix_caching=true"


def _up_to(query: str, high: int) -> range:
    if high < 1:
        raise ConfigError(f"{query}: nothing to search, the largest value is {high}")
    return range(1, high + 1)


def _loaded(point: Point, **changed: Value) -> Point:
    load = {name: _int(value) for name, value in changed.items()}
    return replace(point, workload=replace(point.workload, **load))


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _has_recurrent(point: Point) -> bool:
    parts = [point.planned]
    if point.parallel is not None:
        parts = [stage.planned for stage in point.parallel.stages]
    return any(group.kind == "recurrent" for part in parts for group in part.states)


def _largest_share(point: Point) -> int:
    """Everything, or what a strict device lets a serve ask for."""
    device = point.device
    if device.strict and device.driver is not None:
        return math.floor(device.driver.util_ceiling * SHARES)
    return SHARES
