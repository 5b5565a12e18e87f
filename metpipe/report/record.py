"""What every part of a report is: a frozen record without undeclared keys."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Record"]


class Record(BaseModel):
    """A part of the report: no key that is not declared, no change once made."""

    model_config = ConfigDict(extra="forbid", frozen=True)
