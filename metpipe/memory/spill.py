"""Sequences moved out of the pools, as records in the host's memory (serve.high_speed_swap)."""

from __future__ import annotations

from collections.abc import Iterable

from metpipe.memory import formulas
from metpipe.memory.point import Point
from metpipe.memory.report import StateBytes

__all__ = ["spill_record", "spill_records"]


def spill_record(states: Iterable[StateBytes], num_tokens: int) -> int:
    """Bytes of the record of a sequence of so many tokens, drafted ones alike.

    `states` are the rows of the pools that a sequence lies in.
    """
    held = tuple(states)
    return formulas.spill_record_bytes(
        num_tokens,
        token_bytes=_unit(state for state in held if state.holding == "blocks"),
        slot_bytes=_unit(state for state in held if state.holding == "live"),
    )


def spill_records(point: Point, states: Iterable[StateBytes]) -> tuple[StateBytes, ...]:
    """A record for each sequence of the load at its full length; none where nothing is swapped."""
    if not point.serve.high_speed_swap:
        return ()
    record, count = spill_record(states, point.num_tokens), point.workload.concurrency
    return (
        StateBytes(
            local="spill.record",
            kind="spill_record",
            holding="host",
            lifetime="sequence",
            dtype="u8",
            section="main",
            states=("spill.record",),
            units=count,
            unit_bytes=record,
            bytes=count * record,
        ),
    )


def _unit(states: Iterable[StateBytes]) -> int:
    return sum(len(state.states) * state.unit_bytes for state in states)
