"""Weights of a model whose draft head is often right: each token has two likely successors.

A draft head of random weights agrees with its model about once in a vocabulary, so a run that
verifies drafts would see none accepted. Here all V tokens lie on one shuffled cycle; f(t) is the
token that follows t on it, g(t) one about sqrt(V) steps on. The head's row of a token is the sum of
the embeddings of its predecessors by f and by g, so the logits of f(t) and g(t) stand out as long
as the stream still carries the embedding of t; what the layers add to the stream decides between
them, unless f counts for much more. The draft head passes the embedding on under a noise of its
own, so that it agrees by chance where the two are nearly tied.

Along the cycle runs of tokens with a clear successor alternate with undecided ones, and g keeps to
that beat. So a text passes through both in turn: long drafts are accepted whole in the one, and in
the other short ones are rejected. It comes back to no token within about sqrt(V) tokens, by when
the states differ; so it runs in no circle.

Shapes: V vocabulary, D hidden.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

import numpy as np

from metpipe.engine.checkpoints.draws import (
    F64,
    I64,
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
WRITERS = ("out_proj.weight", "o_proj.weight", "down_proj.weight", "experts.down_proj")
"""What a layer adds to the stream comes from these."""

CLEAR_RUN, BEAT = 18, 60
"""Of so many tokens of the cycle, the first ones have a clear successor."""
CLEAR, UNDECIDED = 7.0, 0.5
"""A predecessor by f counts by this / sqrt(D) more than one by g; of the undecided, up to this."""
STREAM = 1.4
"""Gain of the writers, over sqrt(layers): so the embedding keeps its share of the stream."""
PASSED = 1.0
"""What the draft head's first linear passes on of the embedding, channel by channel."""
GAINS = {"q_norm.weight": 4.0, "o_proj.weight": 1.7, "mlp.gate.weight": 4.0}

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
        return [f"{CONSTRUCTION} {CLEAR_RUN} {BEAT} {CLEAR} {UNDECIDED} {PASSED}", *made]

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
        cycle = order(self.seed, "successors", vocab)
        by_f, by_g = _behind(cycle, 1), _behind(cycle, leap(vocab))
        scale = 1.0 / math.sqrt(hidden)
        strength = 1.0 + scale * self._preference(cycle)
        out = np.empty((vocab, hidden), dtype=np.uint16)
        for start in range(0, vocab, HEAD_ROWS):
            f, g = by_f[start : start + HEAD_ROWS], by_g[start : start + HEAD_ROWS]
            made = (bf16_values(rows[f]) * strength[f, None] + bf16_values(rows[g])) * scale
            out[start : start + HEAD_ROWS] = bf16_bits(made.astype(np.float32))
        return out.reshape(-1)

    def _preference(self, cycle: I64) -> F64:
        """Of each token, for its successor by f."""
        preference = np.empty(len(cycle))
        preference[cycle] = UNDECIDED * uniform(self.seed, "preference", len(cycle))
        preference[cycle[np.arange(len(cycle)) % BEAT < CLEAR_RUN]] = CLEAR
        return preference


def _behind(cycle: I64, steps: int) -> I64:
    """Of each token, the one that lies so many steps behind it on the cycle."""
    behind = np.empty_like(cycle)
    behind[cycle] = np.roll(cycle, steps)
    return behind


def leap(vocab: int) -> int:
    """By how many steps g goes: about sqrt(V), and one more than whole runs, as f is."""
    return BEAT * max(1, round(math.isqrt(vocab) / BEAT)) + 1


def _passing(noise: U16, hidden: int, both: int) -> U16:
    """[D, 2 D], flat: the noise, and the embedding passed on, which comes first."""
    values = bf16_values(noise).reshape(hidden, both)
    channels = np.arange(hidden)
    values[channels, channels] += PASSED
    return bf16_bits(values.astype(np.float32)).reshape(-1)
