"""A gguf architecture's metadata, read key by key: what is left over is refused by name."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from metpipe.engine.checkpoints.gguf_header import GgufHeader
from metpipe.errors import ConfigError

__all__ = ["Keys"]


@dataclass(slots=True)
class Keys:
    """The architecture's metadata; remembers what was asked for, so as to refuse the rest."""

    header: GgufHeader
    prefix: str
    asked: set[str] = field(default_factory=set)

    def find(self, key: str) -> object:
        """The value, or None when the file doesn't state it."""
        self.asked.add(f"{self.prefix}.{key}")
        return self.header.metadata.get(f"{self.prefix}.{key}")

    def count(self, key: str) -> int:
        """A whole number over 0 that must be stated."""
        value = self.find(key)
        if type(value) is not int or value < 1:
            stated = "isn't stated" if value is None else f"is {value!r:.80}, not one number over 0"
            raise ConfigError(
                f"{self.header.path}: {self.prefix}.{key} {stated}, so its config can't be "
                "rebuilt; use the model's safetensors folder"
            )
        return value

    def real(self, key: str) -> float | None:
        """A number; f32 becomes the shortest decimal that rounds to it (1e-05, as written)."""
        value = self.find(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ConfigError(
                f"{self.header.path}: {self.prefix}.{key} isn't a number: {value!r:.80}"
            )
        return float(str(np.float32(value)))

    def refuse_rest(self) -> None:
        """ConfigError when the file states a key of its architecture that nothing asked for."""
        stated = {key for key in self.header.metadata if key.startswith(f"{self.prefix}.")}
        unknown = sorted(stated - self.asked)
        if unknown:
            raise ConfigError(
                f"{self.header.path}: states {', '.join(unknown)}, which metpipe doesn't know for "
                f"{self.prefix} and which may change the forward; use the safetensors folder"
            )
