"""Cosine and sine tables of rotary positions, made once and shared by every forward.

The angle is position x inverse frequency, both in f32, as the Hugging Face models compute it;
cosine and sine are taken in f64 and rounded once to f32, so that the table does not depend on the
last bit of a vector maths library. Scalings: `linear` (Chen et al. 2023), `llama3` (Llama 3.1
release), `yarn` (Peng et al. 2023, section 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["RopeSpec", "rope_spec", "rope_tables"]

F32 = npt.NDArray[np.float32]

SCALING_KEYS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": (
        "factor", "high_freq_factor", "low_freq_factor", "original_max_position_embeddings",
    ),
    "yarn": (
        "attention_factor", "beta_fast", "beta_slow", "factor",
        "original_max_position_embeddings", "truncate",
    ),
}  # fmt: skip
"""kind -> the rope parameters that change its table"""


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """What fixes a table, and nothing else, so that a table is made once.

    `rotary_dim` is at most the head's: the channels behind it do not turn. `scaling` holds the rope
    parameters that the kind computes with.
    """

    kind: str
    theta: float
    rotary_dim: int
    scaling: tuple[tuple[str, float], ...] = ()

    @property
    def values(self) -> Mapping[str, float]:
        """The scaling keys as a mapping."""
        return dict(self.scaling)


def rope_spec(parameters: Mapping[str, object], rotary_dim: int) -> RopeSpec:
    """The spec behind a config's rope parameters: rope_type, rope_theta, scaling keys.

    Keys that this kind does not compute with are left out: `partial_rotary_factor` is in
    `rotary_dim`, and `mrope_section` shares the pairs out among three position axes, which for text
    all hold the same position.
    """
    kind = str(parameters["rope_type"])
    numbers = tuple(
        (key, float(value))
        for key, value in sorted(parameters.items())
        if isinstance(value, int | float) and key in SCALING_KEYS.get(kind, ())
    )
    return RopeSpec(
        kind=kind,
        theta=float(str(parameters["rope_theta"])),
        rotary_dim=rotary_dim,
        scaling=numbers,
    )


def rope_tables(spec: RopeSpec, num_positions: int) -> tuple[F32, F32]:
    """Cosine and sine, each f32 [num_positions, rotary_dim / 2].

    Raises:
        ValueError: the kind is none of default, linear, llama3, yarn, or lacks a scaling key.
    """
    inverse, magnitude = _frequencies(spec)
    angles = np.arange(num_positions, dtype=np.float32)[:, None] * inverse[None, :]
    wide = angles.astype(np.float64)
    scale = np.float64(magnitude)
    return (np.cos(wide) * scale).astype(np.float32), (np.sin(wide) * scale).astype(np.float32)


def _frequencies(spec: RopeSpec) -> tuple[F32, float]:
    exponents = np.arange(0, spec.rotary_dim, 2, dtype=np.float32) / np.float32(spec.rotary_dim)
    base = (1.0 / np.power(np.float64(spec.theta), exponents.astype(np.float64))).astype(np.float32)
    match spec.kind:
        case "default":
            return base, 1.0
        case "linear":
            return (base / np.float32(_need(spec, "factor"))).astype(np.float32), 1.0
        case "llama3":
            return _llama3(base, spec), 1.0
        case "yarn":
            return _yarn(base, spec)
    raise ValueError(f"rope type {spec.kind!r} has no table: default, linear, llama3 and yarn have")


def _need(spec: RopeSpec, key: str) -> float:
    try:
        return spec.values[key]
    except KeyError:
        raise ValueError(f"rope type {spec.kind!r} needs {key!r} in its parameters") from None


def _llama3(base: F32, spec: RopeSpec) -> F32:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = _need(spec, "factor")
    low, high = _need(spec, "low_freq_factor"), _need(spec, "high_freq_factor")
    original = _need(spec, "original_max_position_embeddings")
    wavelength = (2 * math.pi / base.astype(np.float64)).astype(np.float64)
    smooth = (original / wavelength - low) / (high - low)
    blended = (1 - smooth) * base / factor + smooth * base
    scaled = np.where(wavelength > original / low, base / factor, base)
    between = (wavelength <= original / low) & (wavelength >= original / high)
    return np.where(between, blended, scaled).astype(np.float32)


def _yarn(base: F32, spec: RopeSpec) -> tuple[F32, float]:
    """Interpolated below the ramp, kept above it, mixed on it; cos and sin are scaled together."""
    values, factor = spec.values, _need(spec, "factor")
    original = _need(spec, "original_max_position_embeddings")
    fast, slow = values.get("beta_fast", 32.0), values.get("beta_slow", 1.0)
    low, high = _yarn_dim(fast, spec, original), _yarn_dim(slow, spec, original)
    if values.get("truncate", 1.0):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    ramp = (np.arange(spec.rotary_dim // 2, dtype=np.float64) - low) / max(high - low, 0.001)
    keep = 1 - np.clip(ramp, 0, 1)
    mixed = base / factor * (1 - keep) + base * keep
    magnitude = values.get("attention_factor", 0.1 * math.log(factor) + 1 if factor > 1 else 1.0)
    return mixed.astype(np.float32), float(magnitude)


def _yarn_dim(rotations: float, spec: RopeSpec, original: float) -> float:
    """The dimension whose wave turns `rotations` times over the original context."""
    span = math.log(original / (rotations * 2 * math.pi))
    return spec.rotary_dim * span / (2 * math.log(spec.theta))
