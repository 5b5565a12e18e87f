"""`--help`: what metpipe does, how to ask for it, and what the exit status says."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["asked", "text"]


def asked(argv: Sequence[str]) -> bool:
    """Whether the command line asks for help."""
    return "--help" in argv or "-h" in argv


def text() -> str:
    """The whole help text."""
    return "metpipe"
