"""The record of one run of one prompt: small, and enough to compare by digest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
