"""A boot of met's engine: what it allocated, against what the accounting says (section 23)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from metpipe.memory.met.held import side_of
from metpipe.memory.met.side import BootPools, Outside, WhatIfs
from metpipe.memory.point import Point, Workload
from metpipe.memory.report import MemoryReport, Term

__all__ = [
    "PRINTED",
    "RESERVES",
    "TERMS",
    "Boot",
    "BootCheck",
    "BootTerm",
    "Measured",
    "Reserve",
    "at_boot",
    "check_boot",
]

MIB = 1 << 20
Range = tuple[int, int]
"""Both ends in bytes."""
DECIMAL = 0.1
"""MiB: the last place of what a ledger says."""

TERMS: Mapping[str, tuple[str, ...]] = {
    "weights": ("weights", "outside", "copies"),
    "kv": ("kv",),
    "ssm_pool": ("states",),
    "snapshots": ("snapshots",),
    "arena": ("arena",),
    "gdn_two_phase": ("two_phase",),
    "spec_buffers": ("speculation",),
}
"""What a boot's ledger itemizes -> the terms of the accounting."""

PRINTED: Mapping[str, str] = {
    "ssm_pool": "states",
    "marconi": "snapshots of the prefix cache, without its hidden rows",
    "ring": "snapshots of the decode ring",
    "carry": "carry",
    "driver": "driver, without the slack of small allocations",
}
"""What the preflight of a boot prints, in whole MiB, rounded down -> what it is of a plan."""
RESERVES = tuple(PRINTED)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the ledger says of a term: MiB with one decimal, and the error that is accepted."""

    mib: float
    tolerance_percent: float


@dataclass(frozen=True, slots=True)
class Boot:
    """One boot. `serve` are the flags it was started with, by their names with underscores.

    `slots_follow`: it was started with as many slots as sequences (`max_batch_size = "auto"`, which
    `serve` then leaves out); `slots` is what that came to, None where nothing says it.
    """

    checkpoint: str
    hardware: str
    version: int
    serve: Mapping[str, object]
    pools: BootPools
    capture_rows: int
    outside_bytes: int
    chunk_slack: int
    total: int
    measured: Mapping[str, Measured]
    reserve: Mapping[str, int]
    source: str
    slots_follow: bool = False
    slots: int | None = None


@dataclass(frozen=True, slots=True)
class BootTerm:
    """A term: predicted bytes, measured MiB, and the prediction's error in percent of these.

    A range is predicted by both ends, and its error is that of the nearer end: 0 anywhere inside.
    Of nothing there is no percentage: `error_percent` is None where nothing was measured.
    """

    term: str
    predicted: int
    predicted_high: int
    measured_mib: float
    error_percent: float | None
    tolerance_percent: float

    @property
    def agrees(self) -> bool:
        """Whether the error is inside the tolerance; of nothing, whether it is logged as nothing.

        The ledger has one decimal of a MiB, so that 0.0 is anything below half of it.
        """
        if self.error_percent is None:
            return self.predicted < DECIMAL * MIB / 2
        return abs(self.error_percent) <= self.tolerance_percent


@dataclass(frozen=True, slots=True)
class Reserve:
    """A line of the preflight, in whole MiB; it agrees within one of what is predicted.

    Of a range `predicted_mib` and `predicted_high_mib` are the ends; else they are the same.
    """

    name: str
    predicted_mib: int
    predicted_high_mib: int
    printed_mib: int

    @property
    def agrees(self) -> bool:
        """Whether what was printed is what is predicted or lies inside it, but for rounding."""
        return self.predicted_mib - 1 <= self.printed_mib <= self.predicted_high_mib + 1


@dataclass(frozen=True, slots=True)
class BootCheck:
    """Every term and every reserve line of a boot; `unattributed` bytes belong to no term."""

    terms: tuple[BootTerm, ...]
    reserve: tuple[Reserve, ...]
    unattributed: int


def at_boot(point: Point, boot: Boot) -> Point:
    """The point as the boot was: one token in, one out, and the pools that it really had."""
    side = side_of(point)
    return replace(
        point,
        workload=Workload(isl=1, osl=1, concurrency=1),
        slots=boot.slots,
        slots_follow=boot.slots_follow and boot.slots is None,
        met=replace(
            side,
            what_ifs=WhatIfs(capture_rows=boot.capture_rows),
            outside=Outside(boot.outside_bytes, f"measured at {boot.source}"),
            pools=boot.pools,
            chunk_slack=boot.chunk_slack,
        ),
    )


def check_boot(report: MemoryReport, boot: Boot) -> BootCheck:
    """The boot's terms against the report of `at_boot`."""
    said = {term.id: (term.low, term.high) for term in report.terms}
    terms = tuple(
        _term(name, _sum(said[term] for term in TERMS[name]), measured)
        for name, measured in boot.measured.items()
    )
    predicted = _reserves(report, boot)
    return BootCheck(
        terms=terms,
        reserve=tuple(
            Reserve(name, predicted[name][0] // MIB, predicted[name][1] // MIB, printed)
            for name, printed in boot.reserve.items()
        ),
        unattributed=boot.total - round(sum(term.measured_mib for term in terms) * MIB),
    )


def _sum(ranges: Iterable[Range]) -> Range:
    lows, highs = zip(*ranges, strict=True)
    return sum(lows), sum(highs)


def _term(name: str, predicted: Range, measured: Measured) -> BootTerm:
    low, high = predicted
    nearest = min(max(measured.mib, low / MIB), high / MIB)
    error = 100 * (nearest - measured.mib) / measured.mib if measured.mib else None
    return BootTerm(name, low, high, measured.mib, error, measured.tolerance_percent)


def _reserves(report: MemoryReport, boot: Boot) -> Mapping[str, Range]:
    """Bytes of each line, both ends. The hidden rows of the prefix cache stand in none."""
    snapshots = [state for state in report.counts.states if not state.local.startswith("head.")]
    kinds = {"marconi": "prefix_snapshot", "ring": "ring_snapshot"}
    sizes = {
        name: sum(state.bytes for state in snapshots if state.kind == kind)
        for name, kind in kinds.items()
    }
    return {
        "ssm_pool": _ends(report.term("states")),
        "carry": _ends(report.term("carry")),
        "driver": _driver(report.term("driver"), boot),
        **{name: (size, size) for name, size in sizes.items()},
    }


def _driver(term: Term, boot: Boot) -> Range:
    """Without the slack, which a law charges with the driver and a range does not."""
    slack = boot.chunk_slack if term.status == "calibrated" else 0
    return term.low - slack, term.high - slack


def _ends(term: Term) -> Range:
    return term.low, term.high
