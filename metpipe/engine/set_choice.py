"""Which shipped kernel set executes: of the GPU's class, the nearest below it, or the CPU's."""

from __future__ import annotations

from dataclasses import dataclass

from metpipe.circuit import Hardware, parse_hardware
from metpipe.engine.gpu import Gpu
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

__all__ = ["SetChoice", "choose_set", "nearest_set"]

CPU = "cpu"


@dataclass(frozen=True, slots=True)
class SetChoice:
    """A folder of kernels/, and whether it is proven on this very hardware."""

    folder: str
    proven: bool


def choose_set(device: str, gpu: Gpu | None, *, strict: bool) -> SetChoice:
    """The set for `device` (auto, cpu, cuda) on a machine with this GPU, or none.

    Raises:
        ConfigError: cuda without a GPU, or on one that no set reaches; with `strict`, one that no
            set is proven on.
    """
    if device == "cpu" or (device == "auto" and gpu is None):
        return SetChoice(CPU, proven=True)
    if gpu is None:
        raise ConfigError(
            "device=cuda: torch sees no NVIDIA GPU on this machine; use device=cpu, and "
            "hardware=ID to plan memory for another device"
        )
    found = _for_gpu(gpu, gpu_sets())
    if found is None and device == "auto":
        return SetChoice(CPU, proven=True)
    if found is None:
        raise ConfigError(
            f"device=cuda: no kernel set reaches down to {gpu.name} (compute capability "
            f"{gpu.compute_capability}); use device=cpu"
        )
    if strict and not found.proven:
        raise ConfigError(
            f"hardware.strict=true: no kernel set is proven on {gpu.name} (compute capability "
            f"{gpu.compute_capability}); the nearest is {found.folder}: leave strict out to run "
            "it as unproven, or use device=cpu"
        )
    return found


def gpu_sets() -> dict[str, Hardware]:
    """Folder -> what it is for, of every shipped set for GPUs."""
    tables = sorted(kernels_dir().glob("*/HARDWARE.toml"))
    found = {path.parent.name: parse_hardware(path.read_text(), str(path)) for path in tables}
    return {name: hardware for name, hardware in found.items() if hardware.kind == "cuda"}


def nearest_set(compute_capability: str) -> SetChoice | None:
    """The set that would execute on a GPU of this capability (`major.minor`); None without one."""
    return _nearest(_numbers(compute_capability), gpu_sets())


def _for_gpu(gpu: Gpu, sets: dict[str, Hardware]) -> SetChoice | None:
    return _nearest(gpu.version, sets)


def _nearest(version: tuple[int, int], sets: dict[str, Hardware]) -> SetChoice | None:
    """The set that lists the capability, else the one with the highest below it."""
    reach = {
        _numbers(text): name for name, item in sets.items() for text in item.compute_capabilities
    }
    below = [listed for listed in reach if listed <= version]
    if not below:
        return None
    return SetChoice(reach[max(below)], proven=max(below) == version)


def _numbers(capability: str) -> tuple[int, int]:
    major, _, minor = capability.partition(".")
    return int(major), int(minor)
