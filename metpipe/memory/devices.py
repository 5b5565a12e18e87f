"""Which device memory is planned for: its bytes and the law of what its driver takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from metpipe.errors import ConfigError
from metpipe.memory.bounds import MEMORY, MULTIPROCESSORS

__all__ = [
    "Device",
    "DeviceRefusal",
    "Devices",
    "DriverFloor",
    "DriverLaw",
    "device_from_config",
    "find_device",
    "match_device",
]


class DeviceRefusal(ConfigError):
    """A plan cannot be made on this device, and may be on another; `why` says so of several."""

    def __init__(self, message: str, why: str) -> None:
        super().__init__(message)
        self.why = why


@dataclass(frozen=True, slots=True)
class DriverLaw:
    """A class's calibrated driver term; `calibrated_on` says on which boots.

    The numbers are those of one engine, `accounting`, on the devices of `calibrated_devices`;
    `util_ceiling` and `unified` are facts of the class, whichever engine runs there.
    """

    util_ceiling: float
    fixed_bytes: int
    budget_per_mille: int
    unified: bool
    accounting: Literal["metpipe", "met"]
    calibrated_devices: tuple[str, ...]
    calibrated_on: str


@dataclass(frozen=True, slots=True)
class DriverFloor:
    """The least that the driver takes on a class that nobody calibrated; `seen_on` says where."""

    at_least_bytes: int
    seen_on: str


@dataclass(frozen=True, slots=True)
class Device:
    """A device of the registry. `memory_bytes` is None until the executing machine says it (cpu).

    `driver` is its class's law, None where nobody calibrated any; whether it speaks of a plan is
    `law_of`'s to say. `driver_floor` is where the range of a class without one begins, None for
    where every such range begins. `split_k` is how met's decode splits
    the keys on this class. `strict` refuses a utilisation above the
    class's ceiling; `require_calibrated` refuses a plan whose driver term is a range.
    """

    id: str
    device_class: str
    kind: Literal["cpu", "gpu"]
    name: str
    memory_bytes: int | None
    sm_count: int | None
    compute_capability: str | None
    memory_bandwidth_gbps: float | None
    driver: DriverLaw | None
    driver_floor: DriverFloor | None = None
    split_k: Literal["legacy", "auto"] | None = None
    strict: bool = False
    require_calibrated: bool = False
    replaced: tuple[str, ...] = ()
    """facts that the config states in place of the registry's"""


@dataclass(frozen=True, slots=True)
class Devices:
    """The registry; `source` is the file it came from, for messages."""

    by_id: Mapping[str, Device]
    source: str


def find_device(devices: Devices, device_id: str) -> Device:
    """The device of this id; `_` stands for `-`, as in a choice's file name.

    Raises:
        ConfigError: the registry has none; near names are listed, or all where none is near.
    """
    wanted = device_id.replace("_", "-")
    if wanted in devices.by_id:
        return devices.by_id[wanted]
    longer = [key for key in devices.by_id if key.startswith(wanted)]
    close = get_close_matches(wanted, devices.by_id, n=3, cutoff=0.4)
    near, named = longer or close, "near names" if longer or close else "its devices"
    raise ConfigError(
        f"hardware: no device {device_id!r} in {devices.source}; {named}: "
        f"{', '.join(near or sorted(devices.by_id))}. Choose one of them, or add a [[device]] to "
        "that file"
    )


def device_from_config(
    devices: Devices, facts: Mapping[str, object], executing: Device | None = None
) -> Device:
    """The device that `hardware` in the config describes: an id, and facts that replace its own.

    `executing` is the machine that runs: the device itself for the id `auto`, and the memory of
    `cpu`. Facts: memory_bytes (int), sm_count (int), strict, require_calibrated (bool); a None is
    a fact that is not given.

    Raises:
        ConfigError: an unknown id or fact, a fact of a wrong type, no executing machine to ask.
    """
    given = {key: value for key, value in facts.items() if value is not None}
    device_id = given.pop("id", None)
    if not isinstance(device_id, str):
        raise ConfigError(f"hardware.id: a device id is needed, got {device_id!r}")
    device = _base(devices, device_id, executing)
    for fact, value in given.items():
        device = _with_fact(device, fact, value)
    return device


def match_device(
    devices: Devices, compute_capability: str, sm_count: int, memory_bytes: int
) -> Device:
    """The registry's row for a live GPU: same capability and SM count, nearest memory.

    The device keeps the memory that the live GPU reported.

    Raises:
        ConfigError: no row has that capability and SM count.
    """
    rows = [
        row
        for row in devices.by_id.values()
        if (row.compute_capability, row.sm_count) == (compute_capability, sm_count)
    ]
    if not rows:
        raise ConfigError(
            f"hardware: the executing GPU (compute capability {compute_capability}, {sm_count} "
            f"SMs) is not in {devices.source}; choose hardware=ID to plan for, or add a [[device]]"
        )
    nearest = min(rows, key=lambda row: abs((row.memory_bytes or 0) - memory_bytes))
    return replace(nearest, memory_bytes=memory_bytes)


def _base(devices: Devices, device_id: str, executing: Device | None) -> Device:
    if device_id == "auto":
        if executing is None:
            raise ConfigError("hardware=auto: no machine executes; choose hardware=ID")
        return executing
    device = find_device(devices, device_id)
    if device.kind == "cpu" and executing is not None and executing.kind == "cpu":
        return replace(device, memory_bytes=executing.memory_bytes)
    return device


def _with_fact(device: Device, fact: str, value: object) -> Device:
    where = f"hardware.{fact}"
    match fact:
        case "memory_bytes":
            replaced = (*device.replaced, fact)
            return replace(device, memory_bytes=_count(value, where, MEMORY), replaced=replaced)
        case "sm_count":
            replaced = (*device.replaced, fact)
            count = _count(value, where, MULTIPROCESSORS)
            return replace(device, sm_count=count, replaced=replaced)
        case "strict":
            return replace(device, strict=_truth(value, where))
        case "require_calibrated":
            return replace(device, require_calibrated=_truth(value, where))
    raise ConfigError(
        f"{where}: not a fact of a device; there are hardware.strict and "
        "hardware.require_calibrated, and +hardware.memory_bytes=N and +hardware.sm_count=N add two"
    )


def _count(value: object, where: str, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"{where}: a positive integer is needed, got {value!r}")
    if value > most:
        raise ConfigError(f"{where}={value}: more than {most}, the most that a device has")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: true or false is needed, got {value!r}")
    return value
