"""State that no sequence of a case owned: its digests, and whether it moved while the case ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.diff.records import MovedBytes
from metpipe.diff.states import differing_labels

__all__ = ["UnownedBytes", "moved_bytes"]


@dataclass(frozen=True, slots=True)
class UnownedBytes:
    """Digests of the state that no sequence owned, before and after its run."""

    before: Mapping[str, str]
    after: Mapping[str, str]
    moved_at: int | None = None
    """the first step after which it had moved, where each step was checked"""
    moved_between: tuple[str, ...] = ()
    """states that had moved when another sequence came or went, after which `before` was taken"""

    @property
    def moved(self) -> tuple[str, ...]:
        """States that moved; those that were written and restored have no name any more."""
        labels = (*self.moved_between, *differing_labels(self.before, self.after))
        unnamed = ("written and restored",) if self.moved_at is not None else ()
        return tuple(dict.fromkeys(labels)) or unnamed


def moved_bytes(unowned: UnownedBytes, *, run: str, variant: str) -> MovedBytes | None:
    """What moved though no step of the run owned it; None: nothing did."""
    if not unowned.moved:
        return None
    at = "" if unowned.moved_at is None else f", first after step {unowned.moved_at}"
    return MovedBytes(run + at, variant, unowned.moved)
