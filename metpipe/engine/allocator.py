"""The one place that takes device memory: every buffer has a tag, so a boot can be itemised."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import torch

from metpipe.errors import ConfigError

__all__ = ["Allocation", "Allocator", "Tag"]

Tag = str
"""weights, kv, states, arena, workspace, tables, step, legacy: the terms of the memory model."""

TAGS = ("weights", "kv", "states", "arena", "workspace", "tables", "step", "legacy")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One live buffer. `owner` tells those of one tag apart: a forward's name, a tensor's."""

    tag: Tag
    owner: str
    num_bytes: int
    rank: int = 0


@dataclass(slots=True)
class Allocator:
    """Hands out tensors on one device and keeps the ledger of those that live."""

    device: torch.device
    rank: int = 0
    _live: dict[int, Allocation] = field(default_factory=dict)
    _kept: dict[int, torch.Tensor] = field(default_factory=dict)

    def take(
        self, tag: Tag, owner: str, shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """An uninitialised contiguous tensor of `shape`; the ledger counts its exact bytes.

        Raises:
            ValueError: the tag is none of the memory model's terms.
        """
        if tag not in TAGS:
            raise ValueError(f"allocation tag {tag!r} is not one of {', '.join(TAGS)}")
        try:
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        except torch.OutOfMemoryError as error:
            held = sum(item.num_bytes for item in self._live.values())
            raise ConfigError(
                f"out of memory on {self.device}: {tag} {owner} of shape {shape} beside {held} "
                "bytes that this run holds; choose a smaller model, shorter or fewer sequences"
            ) from error
        key = id(tensor)
        self._live[key] = Allocation(tag, owner, tensor.numel() * tensor.element_size(), self.rank)
        self._kept[key] = tensor
        return tensor

    def free(self, tensor: torch.Tensor) -> None:
        """Strike one tensor of `take` off the ledger and drop the allocator's hold on it."""
        key = id(tensor)
        if key not in self._live:
            raise ValueError("freeing a tensor that this allocator did not hand out")
        del self._live[key], self._kept[key]

    def ledger(self) -> tuple[Allocation, ...]:
        """Every live allocation, in the order it was made."""
        return tuple(self._live.values())

    def bytes_by_tag(self, owner: str | None = None) -> dict[Tag, int]:
        """Live bytes per tag; with `owner`, only that owner's."""
        total: Counter[Tag] = Counter()
        for item in self._live.values():
            if owner is None or item.owner == owner:
                total[item.tag] += item.num_bytes
        return dict(total)
