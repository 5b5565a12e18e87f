"""What the stages of the diff are called: `variant:circuit`, `batch:control:circuit`."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.config import MODES

__all__ = ["StageName"]


@dataclass(frozen=True, slots=True)
class StageName:
    """A run of one mode. Stages of plain decoding do not name their mode."""

    mode: str
    kind: str
    """reference, repeat, variant or control"""
    of: str = ""
    """the variant's name, or the repeat's number"""

    @classmethod
    def parse(cls, text: str) -> StageName | None:
        """The parts of a stage's name; None for a stage that is no such run."""
        parts = text.split(":")
        mode = parts.pop(0) if parts[0] in MODES else "single"
        kind, of = parts[0], ":".join(parts[1:])
        return cls(mode, kind, of) if kind in KINDS else None

    @property
    def text(self) -> str:
        """The stage's name."""
        parts = (() if self.mode == "single" else (self.mode,)) + (self.kind,)
        return ":".join((*parts, self.of) if self.of else parts)


KINDS = ("reference", "repeat", "variant", "control")
