"""The part of the report on one rule that is judged alone."""

from __future__ import annotations

from pydantic import Field

from metpipe.report.diff_section import Severity
from metpipe.report.record import Record

__all__ = ["RuleCase", "RuleSection"]


class RuleCase(Record):
    """A rule's kernel against the chain it replaces, on one kind of values."""

    name: str
    rows: int
    unequal_bytes: int
    severity: Severity | None = None


class RuleSection(Record):
    """One rule judged alone."""

    id: str
    numerics: str
    kernels: tuple[str, ...]
    cases: tuple[RuleCase, ...]
    fused_launches: int
    chain_launches: int
    fused_ms_median: float | None
    chain_ms_median: float | None
    passed: bool
    unexercised: tuple[str, ...] = Field(
        default=(), description="outputs that nothing can be said of; the reason not to pass"
    )
    sentence: str
