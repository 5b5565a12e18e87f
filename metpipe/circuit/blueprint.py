"""What a circuit was instantiated from, so that a part of it can be instantiated the same way."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit.description import Description
from metpipe.circuit.precision import Precision
from metpipe.circuit.template import Shape

__all__ = ["Blueprint"]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A description, the model's own shape (without derived dims), and the formats asked for."""

    description: Description
    shape: Shape
    precision: Precision
