"""The largest numbers that a file or a line may state: beyond them is a slip, not a machine."""

from __future__ import annotations

__all__ = ["MEMORY", "MOST", "MULTIPROCESSORS"]

MEMORY = 2**50
"""Bytes of a device, or of anything that lies in one."""
MULTIPROCESSORS = 2**16
MOST = 2**31 - 1
"""Positions, slots and blocks are i32 in a step's inputs."""
