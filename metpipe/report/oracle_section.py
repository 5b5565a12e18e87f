"""The oracle's part of the report."""

from __future__ import annotations

from pydantic import Field

from metpipe.report.record import Record

__all__ = ["OracleRow", "OracleSection"]


class OracleRow(Record):
    """One prompt under an outside implementation."""

    tokens: int
    positions: int
    top1_agreement: float
    max_abs_difference: float | None
    tolerance: float
    noise: float | None = Field(
        description="max |difference| of the implementation's own bf16 forward from its fp32 one"
    )
    rms_difference: float | None = Field(description="over all positions and logits")
    rms_tolerance: float
    clear: int = Field(description="positions whose top-1 leads by more than two tolerances")
    clear_flips: int = Field(description="of these, positions with another top-1")

    @property
    def passed(self) -> bool:
        """Whether both differences are numbers within their tolerance; no clear top-1 differs."""
        return (
            _within(self.max_abs_difference, self.tolerance)
            and _within(self.rms_difference, self.rms_tolerance)
            and self.clear_flips == 0
        )


def _within(difference: float | None, tolerance: float) -> bool:
    return difference is not None and difference <= tolerance


class OracleSection(Record):
    """Is the reference right, and not only equal to itself?"""

    name: str
    version: str
    reader: str
    prompts: tuple[OracleRow, ...]
    passed: bool
    sentence: str
