"""Reads and checks the registry of devices, DEVICES.toml (schema 1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import Field

from metpipe.errors import ConfigError
from metpipe.memory.bounds import MEMORY, MULTIPROCESSORS
from metpipe.memory.devices import Device, Devices, DriverFloor, DriverLaw
from metpipe.memory.toml_model import Schema1, Strict, parse_model

__all__ = ["parse_devices", "read_devices"]

GIB = 2**30


class _Memory(Strict):
    util_ceiling: float = Field(gt=0, le=1)
    driver_fixed_bytes: int = Field(ge=0, le=MEMORY)
    driver_budget_per_mille: int = Field(ge=0, le=1000)
    unified: bool
    accounting: Literal["metpipe", "met"]
    calibrated_devices: list[str] = Field(min_length=1)
    calibrated_on: str = Field(min_length=1)


class _Floor(Strict):
    at_least_bytes: int = Field(ge=0, le=MEMORY)
    seen_on: str = Field(min_length=1)


class _Class(Strict):
    id: str
    kind: Literal["cpu", "gpu"]
    split_k: Literal["legacy", "auto"] | None = None
    memory: _Memory | None = None
    driver_floor: _Floor | None = None


class _Peaks(Strict):
    bf16: float = Field(ge=0)
    fp8: float = Field(ge=0)
    nvfp4: float = Field(ge=0)


class _Row(Strict):
    id: str
    device_class: str = Field(alias="class")
    name: str
    sources: list[str] = Field(min_length=1)
    arch: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = Field(None, gt=0, le=MULTIPROCESSORS)
    memory_type: str | None = None
    memory_gb_datasheet: int | None = Field(None, gt=0, le=MEMORY // GIB)
    memory_gib_visible: float | None = Field(None, gt=0, le=MEMORY // GIB)
    memory_bandwidth_gbps: int | None = Field(None, gt=0)
    l2_mb: int | None = Field(None, gt=0)
    smem_per_sm_kb: int | None = Field(None, gt=0)
    smem_per_block_kb: int | None = Field(None, gt=0)
    nvlink_gbps: int | None = Field(None, ge=0)
    nvlink_domain: int | None = Field(None, gt=0)
    tdp_w: int | None = Field(None, gt=0)
    usable_fraction: float | None = Field(None, gt=0, le=1)
    peak_tflops: _Peaks | None = None
    derived: list[str] = Field(default_factory=list)
    unknown: list[str] = Field(default_factory=list)

    def memory_bytes(self) -> int | None:
        """The visible size, else the data sheet's, in bytes, rounded down."""
        gib = self.memory_gib_visible or self.memory_gb_datasheet
        return None if gib is None else int(gib * GIB)

    def absent(self) -> set[str]:
        """Facts of a GPU that the row leaves out without saying that they are unknown."""
        unsaid = {"derived", "unknown", *self.unknown}
        return {key for key in type(self).model_fields if getattr(self, key) is None} - unsaid


class _Registry(Strict):
    schema_version: Schema1
    sources: dict[str, str]
    classes: list[_Class] = Field(alias="class")
    device: list[_Row]


def read_devices(path: Path) -> Devices:
    """The registry in the file at `path`.

    Raises:
        ConfigError: no such file, or it breaks the schema.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the registry of devices: {error}") from None
    return parse_devices(text, str(path))


def parse_devices(text: str, source: str) -> Devices:
    """The registry in a TOML text; `source` names it in messages.

    Raises:
        ConfigError: broken TOML, an unknown key or class or source, a duplicate id, a value out of
            its range, a class with a law and a floor, a law calibrated on what is no device of its
            class, a GPU's fact that is neither given nor listed in `unknown`.
    """
    registry = parse_model(_Registry, text, source)
    _refuse_duplicates((row.id for row in registry.classes), f"{source}: [[class]]")
    for entry in registry.classes:
        if entry.memory is not None and entry.driver_floor is not None:
            raise ConfigError(
                f"{source}: class {entry.id!r}: a law [class.memory] and a floor "
                "[class.driver_floor]; keep the law, a floor is for a class without one"
            )
    _refuse_duplicates((row.id for row in registry.device), f"{source}: [[device]]")
    for entry in registry.classes:
        _refuse_strange_devices(entry, registry, source)
    return Devices({row.id: _device(row, registry, source) for row in registry.device}, source)


def _refuse_strange_devices(entry: _Class, registry: _Registry, source: str) -> None:
    known = {row.id for row in registry.device if row.device_class == entry.id}
    named = () if entry.memory is None else entry.memory.calibrated_devices
    if strange := [device_id for device_id in named if device_id not in known]:
        raise ConfigError(
            f"{source}: class {entry.id!r}, memory.calibrated_devices: no [[device]] of the class "
            f"has the id {strange[0]!r}; correct it or add the device"
        )


def _device(row: _Row, registry: _Registry, source: str) -> Device:
    where = f"{source}: device {row.id!r}"
    classes = {entry.id: entry for entry in registry.classes}
    if row.device_class not in classes:
        raise ConfigError(f"{where}: no [[class]] {row.device_class!r}; add it or correct the name")
    entry = classes[row.device_class]
    if strange := set(row.sources) - set(registry.sources):
        raise ConfigError(f"{where}: not in [sources]: {', '.join(sorted(strange))}")
    if entry.kind == "gpu" and (absent := row.absent()):
        raise ConfigError(f"{where}: give or list in `unknown`: {', '.join(sorted(absent))}")
    return Device(
        id=row.id,
        device_class=row.device_class,
        kind=entry.kind,
        name=row.name,
        memory_bytes=row.memory_bytes(),
        sm_count=row.sm_count,
        compute_capability=row.compute_capability,
        memory_bandwidth_gbps=row.memory_bandwidth_gbps,
        driver=None if entry.memory is None else _law(entry.memory),
        driver_floor=None if entry.driver_floor is None else _floor(entry.driver_floor),
        split_k=entry.split_k,
    )


def _floor(floor: _Floor) -> DriverFloor:
    return DriverFloor(floor.at_least_bytes, floor.seen_on)


def _law(memory: _Memory) -> DriverLaw:
    return DriverLaw(
        util_ceiling=memory.util_ceiling,
        fixed_bytes=memory.driver_fixed_bytes,
        budget_per_mille=memory.driver_budget_per_mille,
        unified=memory.unified,
        accounting=memory.accounting,
        calibrated_devices=tuple(memory.calibrated_devices),
        calibrated_on=memory.calibrated_on,
    )


def _refuse_duplicates(ids: Iterable[str], where: str) -> None:
    twice = [key for key, count in Counter(ids).items() if count > 1]
    if twice:
        raise ConfigError(f"{where}: the id {twice[0]!r} appears more than once")
