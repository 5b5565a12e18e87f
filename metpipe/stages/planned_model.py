"""A model's plans, kept from one job of a sweep to the next."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

from metpipe.circuit import Circuit, Ranks, Select
from metpipe.engine.set_choice import nearest_set
from metpipe.memory.devices import Device
from metpipe.memory.kernel_set import read_kernel_set
from metpipe.memory.parallel import Parallel, share_out
from metpipe.memory.planned import Planned
from metpipe.resources import kernels_dir

__all__ = ["CPU_SET", "planned_model", "set_for", "shared_model"]

CPU_SET = "cpu"
KEPT = 6
"""Models kept: plans and arenas are their costly part, and a sweep comes back to a few of them."""
PLANNED: dict[tuple[str, ...], Planned] = {}
SHARED: dict[tuple[str, ...], Parallel] = {}

Made = TypeVar("Made")


def planned_model(
    config: Mapping[str, object], circuit: Circuit, kernel_set: str = CPU_SET
) -> Planned:
    """The circuit with its plans and arenas, as the serve's own forward uses them (every rule)."""

    def make() -> Planned:
        return Planned(circuit, read_kernel_set(kernels_dir() / kernel_set), Select.all())

    return _kept(PLANNED, (_text(config), kernel_set), make)


def shared_model(
    config: Mapping[str, object], circuit: Circuit, ranks: Ranks, kernel_set: str = CPU_SET
) -> Parallel:
    """The same of each rank that shares the model.

    Raises:
        ConfigError: what does not divide.
    """

    def make() -> Parallel:
        chosen = read_kernel_set(kernels_dir() / kernel_set)
        return share_out(circuit, ranks, chosen, Select.all())

    return _kept(SHARED, (_text(config), kernel_set, str(ranks)), make)


def set_for(device: Device) -> str:
    """The folder of the kernel set that would execute on a device; the CPU's where none would."""
    if device.kind == "cpu" or device.compute_capability is None:
        return CPU_SET
    nearest = nearest_set(device.compute_capability)
    return CPU_SET if nearest is None else nearest.folder


def _kept(
    models: dict[tuple[str, ...], Made], key: tuple[str, ...], make: Callable[[], Made]
) -> Made:
    if key not in models:
        models[key] = make()
        while len(models) > KEPT:
            del models[next(iter(models))]
    return models[key]


def _text(config: Mapping[str, object]) -> str:
    return json.dumps(config, sort_keys=True, default=str)
