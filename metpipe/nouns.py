"""A number with its noun, as people write it."""

from __future__ import annotations

__all__ = ["number_of"]


def number_of(number: int, noun: str) -> str:
    """`1 token`, `2 tokens`, `1,000 tokens`; for nouns whose plural takes an s."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
