"""A model's plans, kept from one job of a sweep to the next."""

from __future__ import annotations

import json
from collections.abc import Mapping

from metpipe.circuit import Circuit, Select
from metpipe.memory.kernel_set import read_kernel_set
from metpipe.memory.planned import Planned
from metpipe.resources import kernels_dir

__all__ = ["planned_model"]

PLANNED: dict[str, Planned] = {}
"""The last model planned: plans and arenas are its costly part."""


def planned_model(
    config: Mapping[str, object], circuit: Circuit, kernel_set: str = "cpu"
) -> Planned:
    """The circuit with its plans and arenas, as the serve's own forward uses them (every rule)."""
    key = kernel_set + json.dumps(config, sort_keys=True, default=str)
    if key not in PLANNED:
        PLANNED.clear()
        PLANNED[key] = Planned(circuit, read_kernel_set(kernels_dir() / kernel_set), Select.all())
    return PLANNED[key]
