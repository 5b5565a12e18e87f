"""Row buckets: ranges of rows inside which one plan is exact."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit.rules import RuleSet

__all__ = ["Bucket", "row_buckets"]


@dataclass(frozen=True, slots=True)
class Bucket:
    """Rows low..high, both included. A plan fused at `high` holds for all of them."""

    low: int
    high: int


def row_buckets(rules: RuleSet, mode: str, max_rows: int) -> tuple[Bucket, ...]:
    """Split 1..max_rows at every edge of a rule, or of a runtime condition, of that mode."""
    ranges = [rule.rows for rule in rules.rules.values() if mode in rule.modes]
    ranges += [runtime.rows for runtime in rules.runtimes.values() if mode in runtime.modes]
    starts = {1} | {low for low, _ in ranges} | {high + 1 for _, high in ranges}
    lows = sorted(start for start in starts if start <= max_rows)
    highs = [low - 1 for low in lows[1:]] + [max_rows]
    return tuple(Bucket(low, high) for low, high in zip(lows, highs, strict=True))
