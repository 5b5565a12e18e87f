"""The hand-written forward of the hybrids: Qwen3.5, 3.6, 3.8, dense or with experts.

It knows the family, not the circuit: dims come from config.json, weights by module name. One
kernel per op, each writing its own buffer, whose address stays: a step is bound once a row count.
Shapes: R rows, S head rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.forward import Kernels, LegacyStep, head_rows
from metpipe.engine.legacy.hybrid_ffn import feed_forward
from metpipe.engine.legacy.hybrid_mixers import Mixers
from metpipe.engine.legacy.hybrid_shape import HybridShape
from metpipe.engine.legacy.ops import Buffers, Ops, Rope
from metpipe.engine.weights import Weights

__all__ = ["HybridLegacy", "HybridShape"]

DRAFT_LAYER = "mtp.layers.0"


@dataclass(slots=True)
class HybridLegacy:
    """Bound launches of the target's steps and of the draft head's, for one loaded model."""

    shape: HybridShape
    kernels: Kernels
    weights: Weights
    states: Mapping[str, torch.Tensor]
    """state -> its pool; those of the draft head too"""
    snapshots: Mapping[str, torch.Tensor]
    """recurrent state of the target -> f32 [snapshot rows, elements]"""
    step: Mapping[str, torch.Tensor | int]
    rope: Rope
    allocator: Allocator
    max_rows: int
    max_head_rows: int
    drafter_hidden: torch.Tensor | None = None
    """bf16 [sequences, D]: the stream that a draft step starts from; None: drafts do not run"""
    _buffers: Buffers = field(init=False)

    def __post_init__(self) -> None:
        self._buffers = Buffers(self.allocator)

    def bind(self, mode: str, rows: int) -> LegacyStep:
        """The launches of a step of `rows` rows, of the draft head in mode draft.

        Raises:
            ValueError: a draft of a model that was opened without its draft head.
        """
        return self._draft_step(rows) if mode == "draft" else self._target_step(mode, rows)

    def _target_step(self, mode: str, rows: int) -> LegacyStep:
        ops, mixers = self._ops(rows, self.max_rows, ""), self._mixers()
        x_RD = ops.embed(f"{self.shape.root}.embed_tokens", "x")
        for layer, attends in enumerate(self.shape.attends):
            base = f"{self.shape.root}.layers.{layer}"
            if attends:
                x_RD = mixers.attention(ops, x_RD, base, f"l{layer}")
            else:
                x_RD = mixers.delta_net(ops, x_RD, layer)
            x_RD = feed_forward(ops, x_RD, base, self.shape.experts)
        head = ops.narrowed(head_rows(mode, rows), self.max_head_rows)
        return head.head(x_RD, f"{self.shape.root}.norm", self._output_module, hidden=x_RD)

    def _draft_step(self, rows: int) -> LegacyStep:
        """Row i goes on from row i of `drafter_hidden` and the token that follows it."""
        if self.drafter_hidden is None:
            raise ValueError("a draft step of a model that was opened without its draft head")
        ops = self._ops(rows, self.drafter_hidden.shape[0], "draft ")
        x_RD = self._joined(ops, self.drafter_hidden[:rows])
        x_RD = self._mixers().attention(ops, x_RD, DRAFT_LAYER, "draft")
        x_RD = feed_forward(ops, x_RD, DRAFT_LAYER, self.shape.experts)
        return ops.head(x_RD, "mtp.norm", self._output_module, hidden=x_RD)

    def _joined(self, ops: Ops, hidden_RD: torch.Tensor) -> torch.Tensor:
        """The draft layer's stream: both norms side by side, the embedding first, through fc."""
        e_RD = ops.embed(f"{self.shape.root}.embed_tokens", "embedded")
        e_RD = ops.norm(e_RD, "mtp.pre_fc_norm_embedding", "embedded_normed")
        h_RD = ops.norm(hidden_RD, "mtp.pre_fc_norm_hidden", "hidden_normed")
        joined = ops.out("joined", 2 * self.shape.hidden)
        ops.run("split.concat", first=e_RD, second=h_RD, y=joined)
        return ops.linear(joined, "x", "mtp.fc")

    @property
    def _output_module(self) -> str:
        return f"{self.shape.root}.embed_tokens" if self.shape.tied else "lm_head"

    def _ops(self, rows: int, most: int, section: str) -> Ops:
        return Ops(
            self.kernels,
            self.weights,
            self.step,
            self._buffers,
            self.shape.eps,
            "one_plus",
            rows,
            most,
            section,
        )

    def _mixers(self) -> Mixers:
        return Mixers(self.shape, self.states, self.snapshots, self.rope)

    def close(self) -> None:
        """Give every buffer back."""
        self._buffers.close()
