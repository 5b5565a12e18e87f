"""What the tests of bad input share: command lines, and how a refusal is looked at."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["DIFF", "HYBRID", "MEMORY", "MET", "Refused", "has"]

DIFF = ("pipeline=diff", "steps=2", "prompts=1")
MEMORY = ("pipeline=memory",)
MET = (*MEMORY, "memory.accounting=met", "hardware=gb10")
HYBRID = ("model=qwen3_8_27b_nvfp4",)

Refused = Callable[..., str]
"""Runs a line that must be refused; the message."""


def has(message: str, *parts: str) -> None:
    """Every part stands in the message."""
    for part in parts:
        assert part in message, message
