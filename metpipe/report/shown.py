"""How much of a report the console shows; report.json always has all of it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["COMPACT", "Shown"]


class Shown(NamedTuple):
    """Of a memory plan: the bill alone; what lies behind it too; a row for each single node."""

    detail: bool = False
    per_node: bool = False

    @property
    def behind(self) -> bool:
        """Whether sources, nodes, states, caches and runs are shown."""
        return self.detail or self.per_node


COMPACT = Shown()
