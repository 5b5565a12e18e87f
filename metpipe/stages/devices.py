"""The machine that executes, and the device that memory is planned for."""

from __future__ import annotations

from dataclasses import replace

from metpipe.config import Run
from metpipe.engine.checkpoints import machine_memory
from metpipe.memory.devices import Device, Devices, device_from_config, find_device
from metpipe.memory.registry import read_devices
from metpipe.report.schema import Executed, Planned
from metpipe.resources import kernels_dir
from metpipe.snapshot import cores, processor

__all__ = ["executed_on", "executing_device", "planned_device", "planned_for"]


def executing_device(devices: Devices) -> Device:
    """This machine's CPU, with the memory that this process may take of it."""
    return replace(find_device(devices, "cpu"), memory_bytes=machine_memory())


def planned_device(run: Run) -> Device:
    """The device of the run's hardware section; ConfigError when the registry has none."""
    devices = read_devices(kernels_dir() / "DEVICES.toml")
    facts = run.hardware.model_dump()
    return device_from_config(devices, facts, executing_device(devices))


def executed_on(kernel_set: str) -> Executed:
    """The executing machine as the report names it."""
    return Executed(
        device="cpu",
        name=processor(),
        kernel_set=kernel_set,
        cores=cores(),
        memory_bytes=machine_memory(),
    )


def planned_for(device: Device, kernel_set: str) -> Planned:
    """The planned device as the report names it."""
    return Planned(
        device=device.id,
        name=device.name,
        memory_bytes=device.memory_bytes or 0,
        kernel_set=kernel_set,
        plans_with=None if device.device_class == kernel_set else kernel_set,
    )
