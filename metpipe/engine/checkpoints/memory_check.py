"""Whether this machine has the memory that the weights need, asked before it is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = [
    "cgroup_headroom",
    "cgroup_limit",
    "check_memory",
    "free_memory",
    "free_on",
    "gib",
    "machine_memory",
    "place_of",
    "required_memory",
]

BF16_BYTES = 2
# limit, usage, and the file cache that the kernel drops when memory runs short
CGROUP_V2 = ("memory.max", "memory.current", "inactive_file")
CGROUP_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def required_memory(shapes: Mapping[str, Shape]) -> int:
    """Bytes of the tensors in bf16, which is how the engine holds them."""
    return BF16_BYTES * sum(prod(shape) for shape in shapes.values())


def free_memory() -> int:
    """Bytes that this process can still take: of the machine, and of its control group."""
    machine = int(psutil.virtual_memory().available)
    group = cgroup_headroom(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return machine if group is None else min(machine, group)


def machine_memory() -> int:
    """Bytes that this process could take of an empty machine: its memory, or its group's limit."""
    machine = int(psutil.virtual_memory().total)
    limit = cgroup_limit(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup"))
    return machine if limit is None else min(machine, limit)


def check_memory(
    needed_bytes: int, device: torch.device | None = None, *, what: str = "the weights"
) -> None:
    """ConfigError when `what` needs more bytes than are free where it will lie.

    `device`: None is this machine's own memory, as a CPU is.
    """
    free = free_on(device)
    if needed_bytes > free:
        raise ConfigError(
            f"{what}: need {gib(needed_bytes)}, but {gib(free)} are free on this "
            f"{place_of(device)}; choose a smaller model, free memory, or plan it with "
            "pipeline=memory"
        )


def place_of(device: torch.device | None) -> str:
    """What messages call the memory of a device; None: the machine's own."""
    return "GPU" if device is not None and device.type == "cuda" else "machine"


def free_on(device: torch.device | None) -> int:
    """Bytes that this process can still take there; None: of the machine's own memory."""
    if device is None or device.type != "cuda":
        return free_memory()
    from metpipe.engine.gpu import free_bytes  # imports torch, which planning does without

    return free_bytes(device)


def cgroup_headroom(root: Path, membership: Path) -> int | None:
    """The least headroom of the process's control group and those above it; None without a limit.

    `root`: where the groups are mounted; `membership`: the file that names the process's group.
    """
    rooms = [
        room
        for folder, files in _group_folders(root, membership)
        if (room := _headroom(folder, files)) is not None
    ]
    return min(rooms, default=None)


def cgroup_limit(root: Path, membership: Path) -> int | None:
    """The least limit of the process's control group and those above it; None without one."""
    limits = [
        limit
        for folder, (limit_file, _, _) in _group_folders(root, membership)
        if (limit := _limit(folder, limit_file)) is not None
    ]
    return min(limits, default=None)


def _group_folders(root: Path, membership: Path) -> Iterator[tuple[Path, tuple[str, str, str]]]:
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return  # no control groups here (another system)
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers in ("", "memory"):
            base = root / controllers if controllers else root
            own = base / name.lstrip("/")
            # In a container the path may be the host's, which isn't there; the mount then is ours.
            for folder in dict.fromkeys((own, *own.parents)):
                if folder == base or base in folder.parents:
                    yield folder, CGROUP_V1 if controllers else CGROUP_V2


def _headroom(folder: Path, files: tuple[str, str, str]) -> int | None:
    limit_file, usage_file, cache_key = files
    limit = _limit(folder, limit_file)
    try:
        used = int((folder / usage_file).read_text(encoding="utf-8"))
        stat = (folder / "memory.stat").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None  # the root group has no usage files
    if limit is None:
        return None
    pairs = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    return max(0, limit - used + int(pairs.get(cache_key, "0")))


def _limit(folder: Path, limit_file: str) -> int | None:
    """A group's limit; None where it has none, or no file for one (the root group)."""
    try:
        text = (folder / limit_file).read_text(encoding="utf-8").strip()
        return None if text == "max" else int(text)
    except (OSError, ValueError):
        return None


def gib(count: int) -> str:
    """Bytes in GiB, to two places."""
    return f"{count / 2**30:.2f} GiB"
