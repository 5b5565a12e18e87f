"""What a legal circuit is, as a table of checks; the first one that fails is raised."""

from __future__ import annotations

from metpipe.circuit.ir import Circuit

__all__ = ["verify"]


def verify(circuit: Circuit) -> None:
    """Check a circuit."""
