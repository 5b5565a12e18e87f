"""The n-gram index of prompt lookup: a hash map in host memory (section 12)."""

from __future__ import annotations

from metpipe.errors import ConfigError

__all__ = ["lookup_bytes"]

ENTRY = 16
CONTROL = 1
"""A bucket's control byte."""
GROUP = 16
"""The map reads control bytes by groups, and keeps one more group behind the last."""
LIMIT = 1 << 63


def lookup_bytes(entries: int) -> int:
    """Bytes of a map of so many entries: buckets are a power of two, at most 7/8 full.

    Raises:
        ConfigError: more entries than memory has addresses.
    """
    if entries == 0:
        return 0
    size = _buckets(entries) * (ENTRY + CONTROL) + GROUP
    if size >= LIMIT:
        raise ConfigError(f"prompt_lookup: an index of {entries} entries does not fit any memory")
    return size


def _buckets(entries: int) -> int:
    if entries < 4:
        return 4
    if entries < 8:
        return 8
    return 1 << (8 * entries // 7 - 1).bit_length()
