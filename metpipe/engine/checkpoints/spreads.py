"""Centre and standard deviation of each tensor of a synthetic model, by its name and shape."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

from metpipe.engine.checkpoints.protocol import Shape
from metpipe.errors import ConfigError

__all__ = ["RANDOM_GAINS", "spread"]

NORM_SPREAD, BIAS_SPREAD = 0.2, 0.2

RANDOM_GAINS = {
    # logits of a unit-RMS row get a standard deviation of about 2
    "lm_head.weight": 2.0,
    "embed_tokens.weight": 2.0,
    # sharp attention: without it the next token follows from the last alone, and greedy decoding
    # soon runs in a circle of two or three tokens
    "q_proj.weight": 4.0,
    "q_norm.weight": 4.0,
    # clear choices: where the last expert chosen weighs much, its near ties turn a rounding of the
    # router's logits into another forward
    "mlp.gate.weight": 4.0,
}

RECURRENT = {
    # exp of it lies mostly between 1 and 16, whose logarithms Mamba 2 draws
    "A_log": (1.4, 0.8),
    # softplus(a - 3), a of about 1, is a step of mostly 0.02 to 0.3: with A_log's centre a state
    # fades within 1 to 15 tokens, and slower in heads of a small A
    "dt_bias": (-3.0, 1.0),
}
"""Vectors of a recurrent layer, one number a head."""

STACKED = ("experts.gate_up_proj", "experts.down_proj")
"""All experts' matrices in one tensor [experts, out, k]."""


def spread(
    name: str, shape: Shape, gains: Mapping[str, float], one_plus: Container[str]
) -> tuple[float, float]:
    """(centre, standard deviation) of a tensor's values.

    Matrices have 1/sqrt(fan-in), norm weights lie around 1 and biases around 0, each times its
    entry in `gains`. `one_plus`: the norm weights w that scale by 1 + w. ConfigError for a tensor
    of another kind.
    """
    gain = next((gain for suffix, gain in gains.items() if name.endswith(suffix)), 1.0)
    if len(shape) == 3 and name.endswith(STACKED):
        return 0.0, gain / math.sqrt(shape[-1])
    if len(shape) >= 2 and name.endswith(".weight"):
        return 0.0, gain / math.sqrt(math.prod(shape[1:]))
    if len(shape) == 1 and name.endswith(".weight"):
        return gain - (name in one_plus), gain * NORM_SPREAD
    if len(shape) == 1 and name.endswith(".bias"):
        return 0.0, BIAS_SPREAD
    if len(shape) == 1 and (kind := name.rpartition(".")[2]) in RECURRENT:
        return RECURRENT[kind]
    raise ConfigError(
        f"{name} {list(shape)}: synthetic weights are defined for matrices, norm weights, biases "
        "and the decays of recurrent layers only; run a real checkpoint of this model "
        "(model.checkpoint=...)"
    )
