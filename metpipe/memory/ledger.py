"""The plan against what a boot allocated, tag by tag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metpipe.errors import ConfigError
from metpipe.memory.report import MemoryReport, Status

__all__ = ["LedgerRow", "check_ledger"]

UNALLOCATED = frozenset({"driver", "graphs", "collectives"})
"""Terms that no allocation of the engine shows."""


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """One tag: predicted range and measured bytes. Exact terms have a tolerance of 0.

    `status` is None for a tag that the plan does not know; such a row never agrees.
    """

    tag: str
    low: int
    high: int
    measured: int
    status: Status | None

    @property
    def agrees(self) -> bool:
        """Whether the measured bytes are what was predicted."""
        return self.status is not None and self.low <= self.measured <= self.high

    @property
    def difference(self) -> int:
        """Measured less predicted; 0 inside a range."""
        return self.measured - min(max(self.measured, self.low), self.high)


def check_ledger(report: MemoryReport, allocations: Mapping[str, int]) -> tuple[LedgerRow, ...]:
    """A row per term of the report and per tag of the ledger, which maps tags to bytes.

    A term that the ledger lacks was measured as 0. The driver's term is in no ledger.

    Raises:
        ConfigError: an empty ledger, which would compare nothing.
    """
    if not allocations:
        raise ConfigError("ledger: no allocation was recorded, so there is nothing to compare")
    terms = {term.id: term for term in report.terms if term.id not in UNALLOCATED}
    known = [
        LedgerRow(term.id, term.low, term.high, allocations.get(term.id, 0), term.status)
        for term in terms.values()
    ]
    strange = [
        LedgerRow(tag, 0, 0, measured, None)
        for tag, measured in allocations.items()
        if tag not in terms
    ]
    return (*known, *strange)
