"""Synthetic weights: a config, tensor shapes and a seed give the same bits on every machine.

Each tensor has a stream of its own, drawn from the seed and its name, so neither order nor
selection matters. Streams are SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014): integer arithmetic on a counter. A draw of 16 bits picks one of 65,536
values that were computed with +, * and sqrt alone, which IEEE 754 fixes to the last bit.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError

if TYPE_CHECKING:
    import torch

__all__ = ["GENERATOR", "Synthetic", "synthetic"]

GENERATOR = "splitmix64/1"
"""Names the way from draws to values; raise the number when it changes. Part of the digest."""

GAMMA, MIX_A, MIX_B = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
CHUNK_DRAWS = 1 << 16  # draws of 64 bits; four weights each, so that a chunk stays in the cache

NORM_SPREAD, BIAS_SPREAD = 0.2, 0.2
GAINS = {
    # logits of a unit-RMS row get a standard deviation of about 2
    "lm_head.weight": 2.0,
    "embed_tokens.weight": 2.0,
    # sharp attention: without it the next token follows from the last alone, and greedy decoding
    # soon runs in a circle of two or three tokens
    "q_proj.weight": 4.0,
    "q_norm.weight": 4.0,
}

U16 = npt.NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Weights that are drawn when they are read; none when the shapes aren't known yet."""

    name: str
    config: Mapping[str, object]
    tensors: Mapping[str, Shape]
    seed: int

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
        shape = self.tensors[name]
        bits = draw(self.seed, name, math.prod(shape), _table(*_spread(name, shape)))
        return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).reshape(shape)

    def digest(self) -> str:
        """Sha256 over generator, seed, names, shapes and spreads: they fix every bit undrawn."""
        lines = [
            f"{name} bf16 {list(shape)} {_spread(name, shape)}"
            for name, shape in sorted(self.tensors.items())
        ]
        return hashlib.sha256("\n".join([GENERATOR, str(self.seed), *lines]).encode()).hexdigest()

    def tokenizer(self) -> None:
        """Random weights know no words."""
        return


def synthetic(
    config: Mapping[str, object], shapes: Mapping[str, Shape], seed: int, *, name: str = "synthetic"
) -> Synthetic:
    """A checkpoint of lively random bf16 weights: logits with a standard deviation of 1 to 4.

    Matrices have a standard deviation of 1/sqrt(fan-in), norm weights lie around 1 and biases
    around 0, each times its entry in GAINS. `shapes`: tensor name -> shape, as the circuit binds
    them. ConfigError for a tensor that is neither matrix, norm weight nor bias.
    """
    for tensor, shape in shapes.items():
        _spread(tensor, shape)
    return Synthetic(name=name, config=config, tensors=dict(shapes), seed=seed)


def _spread(name: str, shape: Shape) -> tuple[float, float]:
    """(centre, standard deviation) of a tensor's values."""
    gain = next((gain for suffix, gain in GAINS.items() if name.endswith(suffix)), 1.0)
    if len(shape) >= 2 and name.endswith(".weight"):
        return 0.0, gain / math.sqrt(math.prod(shape[1:]))
    if len(shape) == 1 and name.endswith(".weight"):
        return gain, gain * NORM_SPREAD
    if len(shape) == 1 and name.endswith(".bias"):
        return 0.0, BIAS_SPREAD
    raise ConfigError(
        f"{name} {list(shape)}: synthetic weights are defined for matrices, norm weights and "
        "biases only; run a real checkpoint of this model (model.checkpoint=...)"
    )


@lru_cache(maxsize=64)
def _table(centre: float, deviation: float) -> U16:
    """The bf16 bits of the 65,536 values: a bell with thin tails, out to 3.4 deviations."""
    x = (np.arange(65536, dtype=np.float64) - 32767.5) / 32768.0
    x2 = x * x
    x4 = x2 * x2
    bell = x + 3.0 * (x4 * x4 * x)
    # NOTE: the variance of x + 3 x^9 over [-1, 1] is 1/3 + 6/11 + 9/19.
    unit = math.sqrt(1.0 / 3.0 + 6.0 / 11.0 + 9.0 / 19.0)
    values = centre + bell * (deviation / unit)
    return bf16_bits(values.astype(np.float32))


def bf16_bits(values: npt.NDArray[np.float32]) -> U16:
    """The bf16 bits of finite values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)).astype(np.uint16)


def draw(seed: int, name: str, count: int, table: U16) -> U16:
    """`count` entries of the table, by the stream of (seed, name); weight i takes draw i // 4."""
    key = int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8], "little")
    out = np.empty(count, dtype=np.uint16)
    step = 4 * CHUNK_DRAWS
    starts = range(0, count, step)

    def fill(start: int) -> None:
        chunk = out[start : start + step]
        words = _words(key, start // 4, -(-len(chunk) // 4))
        indices = words.astype("<u8", copy=False).view("<u2")[: len(chunk)]
        # mode: the indices can't be out of range, and "raise" would buffer the output
        np.take(table, indices, out=chunk, mode="clip")

    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(fill, starts))
    return out


def _words(key: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """SplitMix64's outputs first .. first + count of the stream that starts at `key`."""
    z = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    z *= GAMMA
    z += np.uint64(key)
    t = z >> np.uint64(30)
    z ^= t
    z *= MIX_A
    np.right_shift(z, np.uint64(27), out=t)
    z ^= t
    z *= MIX_B
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t
    return z
