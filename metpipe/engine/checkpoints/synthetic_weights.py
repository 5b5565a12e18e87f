"""Synthetic weights: a config, tensor shapes and a seed give the same bits on every machine.

Each tensor has a stream of its own, drawn from the seed and its name, so neither order nor
selection matters.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from metpipe.engine.checkpoints.draws import GENERATOR, U16, draw, table
from metpipe.engine.checkpoints.protocol import Shape, WeightsKind
from metpipe.engine.checkpoints.spreads import RANDOM_GAINS, spread
from metpipe.engine.checkpoints.successor_weights import successor_weights
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["RandomWeights", "Synthetic", "synthetic"]


class Made(Protocol):
    """A way to make weights."""

    def bits(self, name: str) -> U16:
        """A tensor's bf16 bits, flat."""
        ...

    def facts(self) -> list[str]:
        """What fixes every bit, with the generator and the seed."""
        ...


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """Lively random weights: logits with a standard deviation of 1 to 4."""

    shapes: Mapping[str, Shape]
    one_plus: Container[str]
    seed: int

    def bits(self, name: str) -> U16:
        """A tensor's bf16 bits, flat."""
        return draw(self.seed, name, math.prod(self.shapes[name]), table(*self._spread(name)))

    def facts(self) -> list[str]:
        """What fixes every bit, with the seed. ConfigError for a tensor of an unknown kind."""
        return [
            f"{name} bf16 {list(shape)} {self._spread(name)}"
            for name, shape in sorted(self.shapes.items())
        ]

    def _spread(self, name: str) -> tuple[float, float]:
        return spread(name, self.shapes[name], RANDOM_GAINS, self.one_plus)


MADE: Mapping[WeightsKind, Callable[[Mapping[str, Shape], Container[str], int], Made]] = {
    "random": RandomWeights,
    "successor": successor_weights,
}


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Weights that are drawn when they are read; none when the shapes aren't known yet."""

    name: str
    config: Mapping[str, object]
    tensors: Mapping[str, Shape]
    seed: int
    made: Made

    @property
    def source(self) -> str:
        """Says that nothing was read."""
        return f"synthetic weights of model {self.name} (seed {self.seed})"

    @property
    def reader(self) -> Literal["synthetic"]:
        """Always synthetic."""
        return "synthetic"

    @property
    def path(self) -> None:
        """There is no file."""
        return

    @property
    def types(self) -> Mapping[str, str]:
        """All are drawn in bf16."""
        return dict.fromkeys(self.tensors, "BF16")

    @property
    def has_weights(self) -> bool:
        """False when no shapes were given."""
        return bool(self.tensors)

    def read(self, name: str) -> torch.Tensor:
        """The tensor in bf16, drawn anew at each call; the caller owns it."""
        import torch

        if name not in self.tensors:
            raise ConfigError(f"{self.source}: no shape was given for tensor {name}")
        bits = self.made.bits(name)
        return (
            torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(self.tensors[name])
        )

    def digest(self) -> str:
        """Sha256 over generator, seed and what the weights are made by: they fix every bit."""
        lines = [GENERATOR, str(self.seed), *self.made.facts()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def tokenizer(self) -> None:
        """Random weights know no words."""
        return


def synthetic(
    config: Mapping[str, object],
    shapes: Mapping[str, Shape],
    seed: int,
    *,
    name: str = "synthetic",
    weights: WeightsKind = "random",
    one_plus: Container[str] = frozenset(),
) -> Synthetic:
    """A checkpoint of bf16 weights made from the seed.

    `shapes`: tensor name -> shape, as the circuit binds them. `one_plus`: names of the norm weights
    w that scale by 1 + w; the others scale by w. ConfigError for a tensor of an unknown kind, or a
    model that `weights` can't be made for.
    """
    tensors = dict(shapes)
    made = MADE[weights](tensors, one_plus, seed)
    made.facts()  # names a tensor of an unknown kind
    return Synthetic(name=name, config=config, tensors=tensors, seed=seed, made=made)
