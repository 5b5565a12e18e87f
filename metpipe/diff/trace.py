"""The record of one run of one prompt: small, and enough to compare by digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

__all__ = ["Trace"]


@dataclass(frozen=True, slots=True)
class Trace:
    """What a run was fed, what it gave, and how long it took."""

    prompt: tuple[int, ...]
    fed: tuple[int, ...]
    """The token fed at each step."""
    prefill_digest: str
    step_digests: tuple[str, ...]
    state_digests: Mapping[str, str]
    """Label -> hex; of the slots and blocks that the sequence owns."""
    enqueue_ms: tuple[float, ...]
    """Host time of each decode call, milliseconds."""
    step_ms: tuple[float, ...]
    """Decode and the wait for its logits, milliseconds."""
    rank: int = 0

    def __post_init__(self) -> None:
        lengths = {
            name: len(getattr(self, name))
            for name in ("fed", "step_digests", "enqueue_ms", "step_ms")
        }
        if len(set(lengths.values())) != 1:
            raise ValueError(f"a trace whose parts count other steps: {lengths}.")

    def as_record(self) -> dict[str, Any]:
        """Plain JSON data; `from_record` gives an equal trace."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trace:
        """The trace that `as_record` recorded; raises ValueError on another record."""
        odd = record.keys() ^ {field.name for field in fields(cls)}
        if odd:
            raise ValueError(f"not the record of a trace: {sorted(odd)} missing or unknown.")
        parts: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in record.items()
        }
        return cls(**parts)


def plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return dict(value) if isinstance(value, Mapping) else value
