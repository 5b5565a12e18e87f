"""Weights of a model whose draft head is often right: each token has two likely successors.

A draft head of random weights agrees with its model about once in a vocabulary, so a run that
verifies drafts would see none accepted. Here all V tokens lie on one shuffled cycle; f(t) is the
token behind t on it, g(t) the one sqrt(V) further. The head's row of a token is the sum of the
embeddings of its two predecessors, so the logits of f(t) and g(t) stand out as long as the stream
still carries the embedding of t; what the layers add to the stream decides between them. The
predecessor by f counts for more, by a strength of its own. The draft head passes the embedding on
under a noise of its own: it mostly agrees where the strength is large, and by chance where the two
are nearly tied. A text that follows f and g alone comes back to no token within sqrt(V) tokens, by
when the states differ; so it runs in no circle.

Shapes: V vocabulary, D hidden.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from metpipe.engine.checkpoints.draws import (
    U16,
    bf16_bits,
    bf16_values,
    draw,
    order,
    table,
    uniform,
)
from metpipe.engine.checkpoints.protocol import Shape
from metpipe.engine.checkpoints.spreads import spread
from metpipe.errors import ConfigError

__all__ = ["SuccessorWeights", "successor_weights"]

CONSTRUCTION = "successor/1"
"""Names the way from draws to these weights; raise the number when it changes."""

HEAD, TABLE, JOIN = "lm_head.weight", "embed_tokens.weight", "mtp.fc.weight"
LAYER = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.")
WRITERS = ("out_proj.weight", "o_proj.weight", "down_proj.weight")
"""What a layer adds to the stream comes from these."""

STRENGTH = 3.2
"""A predecessor by f counts 1 to 1 + STRENGTH / sqrt(D) times as much as one by g."""
STREAM = 1.6
"""Gain of the writers, times sqrt(layers): so the embedding keeps its share of the stream."""
PASSED = 1.0
"""What the draft head's first linear passes on of the embedding, channel by channel."""
GAINS = {JOIN: 0.5, "q_norm.weight": 4.0, "o_proj.weight": 1.7}

HEAD_ROWS = 1 << 10  # made at once


def successor_weights(
    shapes: Mapping[str, Shape], one_plus: Container[str], seed: int
) -> SuccessorWeights:
    """The weights of tensors of these shapes; ConfigError when the head is the embedding table."""
    if shapes and HEAD not in shapes:
        raise ConfigError(
            "model.weights=successor: the head's rows are made of the embedding table, so it can't "
            "be that table; set model.config.tie_word_embeddings=false, or model.weights=random"
        )
    layers = {found[1] for name in shapes if (found := LAYER.match(name))}
    return SuccessorWeights(shapes, one_plus, seed, len(layers))


@dataclass(frozen=True, slots=True)
class SuccessorWeights:
    """Every tensor's bits by seed."""

    shapes: Mapping[str, Shape]
    one_plus: Container[str]
    seed: int
    layers: int
    """Of the model; its draft head's are not counted."""

    def bits(self, name: str) -> U16:
        """A tensor's bf16 bits, flat."""
        shape = self.shapes[name]
        if name == HEAD:
            return self._head(*shape)
        drawn = draw(self.seed, name, math.prod(shape), table(*self._spread(name)))
        return _passing(drawn, *shape) if name == JOIN else drawn

    def facts(self) -> list[str]:
        """What fixes every bit, with the seed."""
        made = [
            f"{name} bf16 {list(shape)} {'' if name == HEAD else self._spread(name)}"
            for name, shape in sorted(self.shapes.items())
        ]
        return [f"{CONSTRUCTION} {STRENGTH} {PASSED}", *made]

    def _spread(self, name: str) -> tuple[float, float]:
        if name.endswith(TABLE):
            return 0.0, 1.0
        centre, deviation = spread(name, self.shapes[name], GAINS, self.one_plus)
        if LAYER.match(name) and name.endswith(WRITERS):
            deviation *= STREAM / math.sqrt(self.layers)
        return centre, deviation

    def _head(self, vocab: int, hidden: int) -> U16:
        """[V, D], flat: (strength * row of the predecessor by f + row of that by g) / sqrt(D)."""
        (source,) = (name for name in self.shapes if name.endswith(TABLE))
        rows = self.bits(source).reshape(vocab, hidden)
        by_f, by_g = (self._behind(steps, vocab) for steps in (1, math.isqrt(vocab)))
        strength = 1.0 + (STRENGTH / math.sqrt(hidden)) * uniform(self.seed, "strength", vocab)
        scale = 1.0 / math.sqrt(hidden)
        out = np.empty((vocab, hidden), dtype=np.uint16)
        for start in range(0, vocab, HEAD_ROWS):
            f, g = by_f[start : start + HEAD_ROWS], by_g[start : start + HEAD_ROWS]
            made = (bf16_values(rows[f]) * strength[f, None] + bf16_values(rows[g])) * scale
            out[start : start + HEAD_ROWS] = bf16_bits(made.astype(np.float32))
        return out.reshape(-1)

    def _behind(self, steps: int, vocab: int) -> npt.NDArray[np.int64]:
        """Of each token, the one that lies so many steps behind it on the cycle."""
        cycle = order(self.seed, "successors", vocab)
        behind = np.empty(vocab, dtype=np.int64)
        behind[cycle] = np.roll(cycle, steps)
        return behind


def _passing(noise: U16, hidden: int, both: int) -> U16:
    """[D, 2 D], flat: the noise, and the embedding passed on, which comes first."""
    values = bf16_values(noise).reshape(hidden, both)
    channels = np.arange(hidden)
    values[channels, channels] += PASSED
    return bf16_bits(values.astype(np.float32)).reshape(-1)
