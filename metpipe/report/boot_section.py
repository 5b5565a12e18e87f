"""The part of the report that holds a plan against a boot of met's engine."""

from __future__ import annotations

from pydantic import Field

from metpipe.memory.met.boot import PRINTED, TERMS, Boot, BootCheck
from metpipe.report.record import Record

__all__ = ["BootLine", "BootSection", "ReserveLine", "boot_section"]


SLOTS_UNSAID = (
    "it counted its slots itself, and its file does not say them: looked at with one ([boot] slots "
    "= N says them)"
)


class BootLine(Record):
    """A line of the ledger: predicted bytes, measured MiB, the error and what is accepted of it.

    `of` are the plan's terms that it holds. Of a range both ends are predicted, and the error is
    that of the nearer end, 0 inside; of a measured 0 there is no error in percent.
    """

    term: str
    of: tuple[str, ...]
    predicted: int
    predicted_high: int
    measured_mib: float
    error_percent: float | None
    tolerance_percent: float
    agrees: bool


class ReserveLine(Record):
    """A line of the boot's preflight, in whole MiB; within one they agree. `of`: what it holds.

    Of a range both ends are predicted, and what lies between them agrees.
    """

    name: str
    of: str
    predicted_mib: int
    predicted_high_mib: int
    printed_mib: int
    agrees: bool


class BootSection(Record):
    """What the boot itemizes, what its preflight printed, and the bytes that no term explains."""

    source: str
    checkpoint: str
    version: int
    kv_blocks: int
    draft_kv_blocks: int
    terms: tuple[BootLine, ...]
    reserve: tuple[ReserveLine, ...]
    unattributed: int
    note: str = Field(default="", description="what the boot's file leaves open")

    @property
    def misses(self) -> tuple[str, ...]:
        """Terms outside their tolerance and lines that differ."""
        off = [line.term for line in self.terms if not line.agrees]
        return (*off, *(f"reserve {line.name}" for line in self.reserve if not line.agrees))


def boot_section(boot: Boot, check: BootCheck) -> BootSection:
    """The section of a check."""
    return BootSection(
        source=boot.source,
        checkpoint=boot.checkpoint,
        version=boot.version,
        kv_blocks=boot.pools.kv_blocks,
        draft_kv_blocks=boot.pools.draft_kv_blocks,
        terms=tuple(
            BootLine(
                term=term.term,
                of=TERMS[term.term],
                predicted=term.predicted,
                predicted_high=term.predicted_high,
                measured_mib=term.measured_mib,
                error_percent=term.error_percent,
                tolerance_percent=term.tolerance_percent,
                agrees=term.agrees,
            )
            for term in check.terms
        ),
        reserve=tuple(
            ReserveLine(
                name=line.name,
                of=PRINTED[line.name],
                predicted_mib=line.predicted_mib,
                predicted_high_mib=line.predicted_high_mib,
                printed_mib=line.printed_mib,
                agrees=line.agrees,
            )
            for line in check.reserve
        ),
        unattributed=check.unattributed,
        note=SLOTS_UNSAID if boot.slots_follow and boot.slots is None else "",
    )
