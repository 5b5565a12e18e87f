"""The NVIDIA GPU of this process, as torch sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

__all__ = ["Gpu", "find_gpu", "free_bytes", "wait"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """What tells one GPU from another."""

    name: str
    compute_capability: str
    """`major.minor`"""
    memory_bytes: int
    sm_count: int
    runtime: str | None
    """version of the CUDA runtime that torch was built with"""

    @property
    def version(self) -> tuple[int, int]:
        """The capability as numbers, which order."""
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


def find_gpu() -> Gpu | None:
    """The GPU that this process computes on; None where torch sees none."""
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    return Gpu(
        facts.name,
        f"{facts.major}.{facts.minor}",
        facts.total_memory,
        facts.multi_processor_count,
        torch.version.cuda,
    )


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that nobody has taken."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def wait(device: torch.device) -> None:
    """Return when the device has done what it was given; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
