"""The machine that executes, and the device that memory is planned for."""

from __future__ import annotations

from dataclasses import replace

from metpipe.config import Run
from metpipe.engine.checkpoints import machine_memory
from metpipe.engine.gpu import Gpu, find_gpu
from metpipe.engine.kernel_sets import KernelSets
from metpipe.memory.devices import (
    Device,
    Devices,
    device_from_config,
    find_device,
    match_device,
)
from metpipe.memory.registry import read_devices
from metpipe.report.schema import Executed, Planned
from metpipe.resources import kernels_dir
from metpipe.snapshot import cores, processor

__all__ = ["executed_on", "executing_device", "planned_device", "planned_for"]


def executing_device(devices: Devices, gpu: Gpu | None = None) -> Device:
    """The registry's row of the GPU that executes; else this machine's CPU and what it may take."""
    if gpu is not None:
        return match_device(devices, gpu.compute_capability, gpu.sm_count, gpu.memory_bytes)
    return replace(find_device(devices, "cpu"), memory_bytes=machine_memory())


def planned_device(run: Run) -> Device:
    """The device of the run's hardware section; ConfigError when the registry has none."""
    devices = read_devices(kernels_dir() / "DEVICES.toml")
    facts = run.hardware.model_dump()
    gpu = find_gpu() if run.device != "cpu" and run.hardware.id == "auto" else None
    return device_from_config(devices, facts, executing_device(devices, gpu))


def executed_on(sets: KernelSets) -> Executed:
    """The executing machine as the report names it."""
    kernel_set = sets.builtin.name
    if sets.device.type == "cuda" and (gpu := find_gpu()) is not None:
        return Executed(
            device="cuda",
            name=gpu.name,
            kernel_set=kernel_set,
            memory_bytes=gpu.memory_bytes,
            unproven=not sets.proven,
        )
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
