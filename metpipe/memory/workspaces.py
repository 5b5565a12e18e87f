"""Scratch buffers of the kernel families that a serve launches (section 14 of met's account)."""

from __future__ import annotations

from collections.abc import Iterable

from metpipe.memory.point import Point
from metpipe.memory.report import WorkspaceBytes

__all__ = ["Program", "workspaces_of"]

Program = tuple[str, str, int]
"""A compiled step: its label, mode and rows."""


def workspaces_of(point: Point, programs: Iterable[Program]) -> tuple[WorkspaceBytes, ...]:
    """Per family and buffer the program that needs most; the first wins ties."""
    names = {
        "max_seq_len": point.serve.max_seq_len,
        "block_size": point.serve.block_size,
        "threads": point.threads,
        "sm_count": point.device.sm_count,
    }
    known = {name: value for name, value in names.items() if value is not None}
    widest: dict[tuple[str, str], WorkspaceBytes] = {}
    for label, mode, rows in programs:
        for need in point.planned.sizes(mode, rows).workspaces(rows, known):
            key = (need.family, need.name)
            if key not in widest or need.bytes > widest[key].bytes:
                widest[key] = WorkspaceBytes(
                    need.family, need.name, need.bytes, label, need.nodes, need.in_arena
                )
    return tuple(widest.values())
