"""The one evaluator: counts of an accounting, the driver, the budget, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory import formulas
from metpipe.memory.driver import driver_term
from metpipe.memory.impossible import refuse_impossible
from metpipe.memory.met import count as met
from metpipe.memory.metpipe import count as count_metpipe
from metpipe.memory.point import Point
from metpipe.memory.ranks import fullest_of, rank_points
from metpipe.memory.report import Answer, Counts, MemoryReport, PoolRoom, Term, answer_of

__all__ = ["ACCOUNTINGS", "Accounting", "answer_at", "evaluate", "headroom_at"]


@dataclass(frozen=True, slots=True)
class Accounting:
    """Whose allocations are counted: everything, or the terms alone where those are cheaper."""

    count: Callable[[Point], Counts]
    terms: Callable[[Point], tuple[Term, ...]]


ACCOUNTINGS: Mapping[str, Accounting] = {
    "metpipe": Accounting(count_metpipe, lambda point: count_metpipe(point).terms),
    "met": Accounting(met.count, met.terms),
}
"""Another engine's stands beside `metpipe` here."""

OF_THE_MODEL = frozenset({"weights", "outside", "copies"})
"""Terms that no load moves."""
ADDRESSES = 2**63
"""An engine's sizes are signed."""


def evaluate(point: Point) -> MemoryReport:
    """The serve's bytes at one point, term by term, against the device's budget.

    Of several ranks the fullest decides.

    Raises:
        ConfigError: the point asks for what no serve can do, or for what cannot be counted.
    """
    if point.parallel is None:
        return _evaluated(point)
    return fullest_of(point.parallel, [_evaluated(rank) for rank in rank_points(point)])


def _evaluated(point: Point) -> MemoryReport:
    """One rank's report."""
    counts = _accounting(point).count(point)
    budget = _budget(point)
    terms = (*counts.terms, driver_term(point, budget))
    low, high = _span(terms)
    return MemoryReport(
        accounting=point.accounting,
        device=point.device.id,
        kernel_set=point.planned.kernel_set.name,
        device_bytes=point.device.memory_bytes or 0,
        budget=budget,
        counts=counts,
        terms=terms,
        total_low=low,
        total_high=high,
        answer=answer_of(budget - high, budget - low),
        pool=_pool_room(point, counts, budget, low, high),
        notes=(*counts.notes, *_notes(point)),
    )


def answer_at(point: Point) -> Answer:
    """The answer of `evaluate`, without the rows behind it.

    Raises:
        ConfigError: as `evaluate`.
    """
    return answer_of(*headroom_at(point))


def headroom_at(point: Point) -> tuple[int, int]:
    """(headroom_low, headroom_high) of `evaluate`, without the rows behind them.

    Of several ranks the least of each.

    Raises:
        ConfigError: as `evaluate`.
    """
    if point.parallel is None:
        return _headroom_at(point)
    lows, highs = zip(*map(_headroom_at, rank_points(point)), strict=True)
    return min(lows), min(highs)


def _headroom_at(point: Point) -> tuple[int, int]:
    terms, budget = _accounting(point).terms(point), _budget(point)
    low, high = _span((*terms, driver_term(point, budget)))
    return budget - high, budget - low


def _accounting(point: Point) -> Accounting:
    if point.accounting not in ACCOUNTINGS:
        known = ", ".join(ACCOUNTINGS)
        raise ConfigError(
            f"memory.accounting={point.accounting}: nobody counts that yet; use one of {known}"
        )
    refuse_impossible(point)
    return ACCOUNTINGS[point.accounting]


def _budget(point: Point) -> int:
    device_bytes, utilization = point.device.memory_bytes or 0, point.serve.gpu_memory_utilization
    return formulas.budget_bytes(device_bytes, utilization)


def _span(terms: tuple[Term, ...]) -> tuple[int, int]:
    low, high = sum(term.low for term in terms), sum(term.high for term in terms)
    if high >= ADDRESSES:
        raise ConfigError(_beyond_addresses(terms, high))
    return low, high


def _beyond_addresses(terms: tuple[Term, ...], high: int) -> str:
    """What is too large: the model by itself, or the load."""
    own = sum(term.high for term in terms if term.id in OF_THE_MODEL)
    if own >= ADDRESSES:
        return (
            f"model: its weights and their copies take {own} bytes, more than any memory has "
            "addresses for; correct the sizes in its config"
        )
    largest = max(terms, key=lambda term: term.high)
    return (
        f"workload: the plan takes {high} bytes ({largest.id} {largest.high}), more than any "
        "memory has addresses for; lower workload.concurrency, workload.isl or the slots"
    )


def _pool_room(point: Point, counts: Counts, budget: int, low: int, high: int) -> PoolRoom | None:
    """The KV pool that the budget leaves when everything else stays as it is."""
    if not counts.kv_blocks:
        return None
    pool = counts.pool_bytes
    block_bytes = pool // counts.kv_blocks
    return PoolRoom(
        block_size=point.serve.block_size,
        block_bytes=block_bytes,
        blocks_needed=counts.kv_blocks,
        blocks_low=max(0, (budget - (high - pool)) // block_bytes),
        blocks_high=max(0, (budget - (low - pool)) // block_bytes),
    )


def _notes(point: Point) -> tuple[str, ...]:
    device, utilization = point.device, point.serve.gpu_memory_utilization
    notes = []
    other_set = point.planned.kernel_set.device_class != device.device_class
    if point.met is None and device.kind == "gpu" and other_set:
        notes.append(
            f"planned with the kernel set {point.planned.kernel_set.name}: there is none for "
            f"{device.device_class}"
        )
    if device.driver is not None and utilization > device.driver.util_ceiling:
        notes.append(
            f"utilisation {utilization} is above the ceiling {device.driver.util_ceiling} of "
            f"{device.device_class}"
        )
    if device.driver is not None and device.driver.unified:
        notes.append("unified memory: what the host uses shares the device, outside the budget")
    return (*notes, *_position_notes(point))


def _position_notes(point: Point) -> Iterator[str]:
    """Lengths that the serve allows and the model was not made for."""
    positions, limit = point.max_positions, point.serve.max_seq_len
    if positions is None or limit <= positions:
        return
    yield (
        f"serve.max_seq_len={limit} is beyond the {positions} tokens that the model was made for "
        "(max_position_embeddings): longer prompts and outputs are not asked about"
    )
    if point.num_tokens > positions:
        yield f"the workload's {point.num_tokens} tokens are beyond them as well"
