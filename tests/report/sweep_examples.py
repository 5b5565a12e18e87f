"""Jobs of sweeps to show and to draw."""

from __future__ import annotations

from collections.abc import Sequence

from metpipe.report.memory_section import Workload
from metpipe.report.sweep_record import JobRow, Limit, MemoryRow, TermRow

GIB = 1 << 30
WEIGHTS, TABLES = 15 * GIB, GIB // 64
DRIVER = (GIB // 2, 4 * GIB)
PER_TOKEN = GIB // 8192


def plan(
    isl: int, concurrency: int, *, budget: int = 60 * GIB, device: str = "b200", **more: object
) -> MemoryRow:
    """A plan whose keys and values take an eighth of a MiB a token; the driver's range is open."""
    kv = PER_TOKEN * isl * concurrency
    terms = (
        TermRow(id="weights", low=WEIGHTS, high=WEIGHTS, status="exact"),
        TermRow(id="kv", low=kv, high=kv, status="exact"),
        TermRow(id="states", low=0, high=0, status="exact"),
        TermRow(id="tables", low=TABLES, high=TABLES, status="exact"),
        TermRow(id="step", low=TABLES, high=TABLES, status="calibrated"),
        TermRow(id="driver", low=DRIVER[0], high=DRIVER[1], status="uncalibrated"),
    )
    low, high = sum(t.low for t in terms), sum(t.high for t in terms)
    fits = "fits" if high <= budget else "depends" if low <= budget else "does not fit"
    rest = [budget - WEIGHTS - 2 * TABLES - driver for driver in reversed(DRIVER)]
    most = tuple(max(0, r) // (PER_TOKEN * isl) for r in rest)
    longest = tuple(max(0, r) // (PER_TOKEN * concurrency) for r in rest)
    facts: dict[str, object] = {
        "accounting": "metpipe",
        "device": device,
        "workload": Workload(isl=isl, osl=256, concurrency=concurrency),
        "ranks": 1,
        "terms": terms,
        "low": low,
        "high": high,
        "budget": budget,
        "host": 0,
        "leaked": 0,
        "planned": 0,
        "headroom_low": budget - high,
        "headroom_high": budget - low,
        "answer": fits,
        "limits": {"max_concurrency": query(most, 256), "max_isl": query(longest, 130_000)},
        "expert_tables": None,
    }
    return MemoryRow.model_validate(facts | more)


def query(ends: Sequence[int], high: int) -> Limit:
    surely, possibly = (min(end, high) or None for end in ends)
    return Limit(low=1, high=high, surely=surely, possibly=possibly)


def job(number: int, *overrides: str, memory: MemoryRow | None = None, **more: object) -> JobRow:
    facts: dict[str, object] = {
        "job": str(number),
        "overrides": ("pipeline=memory", "model=qwen3_8b", *overrides),
        "status": "PASS",
        "exit": 0,
        "error": None,
        "model": "qwen3_8b",
        "memory": memory,
    }
    return JobRow.model_validate(facts | more)


def refused(number: int, *overrides: str) -> JobRow:
    return job(number, *overrides, status="USAGE", exit=2, error="slots: too few\n  x", model=None)


def grid(
    lengths: Sequence[int] = (1024, 8192, 32768),
    numbers: Sequence[int] = (1, 4, 16),
    **more: object,
) -> tuple[JobRow, ...]:
    """A job for each length and number of sequences."""
    pairs = [(isl, n) for n in numbers for isl in lengths]
    return tuple(
        job(i, f"workload.concurrency={n}", f"workload.isl={isl}", memory=plan(isl, n, **more))  # type: ignore[arg-type]
        for i, (isl, n) in enumerate(pairs)
    )


def line(count: int) -> tuple[JobRow, ...]:
    """`count` jobs along one number."""
    lengths = range(1000, 1000 + 3000 * count, 3000)
    return tuple(job(i, f"workload.isl={n}", memory=plan(n, 8)) for i, n in enumerate(lengths))
