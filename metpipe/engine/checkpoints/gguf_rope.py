"""The rope_scaling of a config, from a gguf's metadata or from its tensor of frequency factors."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from metpipe.engine.checkpoints.gguf_keys import Keys
from metpipe.engine.checkpoints.gguf_names import ROPE_FREQS
from metpipe.errors import ConfigError

__all__ = ["llama3_factors", "llama3_scaling", "plain_scaling"]

F32 = npt.NDArray[np.float32]

# Every published model with llama3 scaling has these two; the original length was 8192 so far.
LOW_FREQ, HIGH_FREQ = 1.0, 4.0
ORIGINAL_LENGTHS = tuple(1 << power for power in range(8, 18))


def plain_scaling(keys: Keys) -> dict[str, object] | None:
    """The scaling that the metadata states: none, linear or yarn. ConfigError for another."""
    kind = keys.find("rope.scaling.type")
    keys.find("rope.scaling.finetuned")  # says how it was trained; changes no angle
    if kind in (None, "none"):
        return None
    if kind not in ("linear", "yarn"):
        raise ConfigError(
            f"{keys.header.path}: {keys.prefix}.rope.scaling.type is {kind!r}; metpipe reads none, "
            "linear and yarn from a gguf; use the model's safetensors folder"
        )
    scaling: dict[str, object] = {"rope_type": kind, "factor": keys.real("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = keys.count(
            "rope.scaling.original_context_length"
        )
        betas = {
            name: keys.real(f"rope.scaling.yarn_{name}") for name in ("beta_fast", "beta_slow")
        }
        scaling |= {name: value for name, value in betas.items() if value is not None}
    if scaling["factor"] is None:
        raise ConfigError(f"{keys.header.path}: {keys.prefix}.rope.scaling.factor isn't stated")
    return scaling


def llama3_scaling(
    path: Path, factors: F32, *, theta: float, head_dim: int
) -> dict[str, object] | None:
    """The llama3 parameters that give these factors, f32 [head_dim / 2]; None when all are 1.

    A gguf keeps only the factors, so that the parameters are searched. Lengths that give the same
    factors give the same angles. ConfigError when none does.
    """
    factor = float(factors.max())
    if np.all(factors == 1.0):
        return None
    for original in ORIGINAL_LENGTHS if factor > 1.0 else ():
        made = llama3_factors(theta=theta, head_dim=head_dim, factor=factor, original=original)
        if made.shape == factors.shape and np.allclose(made, factors, rtol=1e-4, atol=0.0):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW_FREQ,
                "high_freq_factor": HIGH_FREQ,
                "original_max_position_embeddings": original,
            }
    raise ConfigError(
        f"{path}: {ROPE_FREQS} scales the positions in a way that isn't llama3's, so the config's "
        "rope_scaling can't be rebuilt; use the model's safetensors folder"
    )


def llama3_factors(*, theta: float, head_dim: int, factor: float, original: int) -> F32:
    """By what llama3 divides each frequency, f32 [head_dim / 2].

    Long waves (over original / low) are divided by `factor`, short ones (under original / high)
    by 1, those between by a blend that is linear in the frequency (Llama 3.1 release).
    """
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    waves = 2.0 * math.pi * np.power(theta, exponents)
    blend = np.clip((original / waves - LOW_FREQ) / (HIGH_FREQ - LOW_FREQ), 0.0, 1.0)
    return (1.0 / ((1.0 - blend) / factor + blend)).astype(np.float32)
