"""Which forward to make: a value that runs, stages and reports can hold."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit import Select

__all__ = ["ForwardSelect"]


@dataclass(frozen=True, slots=True)
class ForwardSelect:
    """Which forward: legacy, or circuit with which rules from which kernels."""

    name: str
    forward: str
    select: Select
    levers: frozenset[str] = frozenset()
    overlay: bool = False
    graphs: bool = False
    """launches captured once a (mode, rows), and replayed"""
