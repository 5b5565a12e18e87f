"""What a forward says about itself: which plans ran, which kernels, how many launches."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from metpipe.circuit import plans_digest

__all__ = ["Coverage", "Disclosure", "PlanFacts", "digest_of_names"]


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """A plan disclosed: its digest, its rules, and how many groups claim equal bits."""

    digest: str
    rules: tuple[str, ...]
    groups: int
    bit_identical: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of one program that ran is rules that claim equal bits."""

    mode: str
    rows: int
    groups: int
    bit_identical: int


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What ran, as seen by the forward itself. Legacy has no plan digests."""

    forward: str
    plan_digests: Mapping[str, str]
    """"mode rows" -> digest, for each program that ran"""
    kernel_digests: Mapping[str, str]
    launches: Mapping[str, int]
    """kernel -> launches so far"""
    launches_per_step: int | None
    """launches of the one-row decode program; None when it never ran"""
    rules: tuple[str, ...] = ()
    """ids of the rules of the plans that ran"""
    coverage: tuple[Coverage, ...] = ()
    graphs: bool = False
    captures: int = 0
    """steps captured as graphs"""
    replays: int = 0
    """steps that were such a graph, replayed"""
    slots: Mapping[str, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """"mode rows" -> the state slots that its launches saw, each layout once"""
    steps: Mapping[str, int] = field(default_factory=dict)
    """"mode rows" -> steps that ran"""
    paths: Mapping[str, str] = field(default_factory=dict)
    """"mode rows" -> SHA-256 over the names of the kernels that a step launches, in their order"""
    seconds: float = 0.0
    """wall time inside the forward: its steps, commits and drafts"""

    @property
    def plans_digest(self) -> str | None:
        """SHA-256 over the digests of the plans that ran, each with a newline; None for legacy."""
        if not self.plan_digests:
            return None
        return plans_digest(self.plan_digests[key] for key in sorted(self.plan_digests))


def digest_of_names(kernels: Iterable[str]) -> str:
    """SHA-256 over the names of launched kernels, each followed by a newline."""
    return hashlib.sha256("".join(f"{name}\n" for name in kernels).encode()).hexdigest()
