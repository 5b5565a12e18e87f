"""The part of the report that holds a plan against a boot of met's engine."""

from __future__ import annotations

from metpipe.memory.met.boot import Boot, BootCheck
from metpipe.report.record import Record

__all__ = ["BootLine", "BootSection", "ReserveLine", "boot_section"]


class BootLine(Record):
    """A term: predicted bytes, measured MiB, the error in percent and what is accepted of it."""

    term: str
    predicted: int
    measured_mib: float
    error_percent: float
    tolerance_percent: float
    agrees: bool


class ReserveLine(Record):
    """A line of the boot's preflight, in whole MiB; within one they agree."""

    name: str
    predicted_mib: int
    printed_mib: int
    agrees: bool


class BootSection(Record):
    """What the boot itemizes, what its preflight printed, and the bytes that no term explains."""

    source: str
    checkpoint: str
    version: int
    terms: tuple[BootLine, ...]
    reserve: tuple[ReserveLine, ...]
    unattributed: int

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
        terms=tuple(
            BootLine(
                term=term.term,
                predicted=term.predicted,
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
                predicted_mib=line.predicted_mib,
                printed_mib=line.printed_mib,
                agrees=line.agrees,
            )
            for line in check.reserve
        ),
        unattributed=check.unattributed,
    )
