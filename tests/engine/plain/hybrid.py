"""A model of the hybrid families in plain torch: the target, and its draft head.

Shapes: N rows of one sequence, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from metpipe.engine.checkpoints import Checkpoint
from tests.engine.plain.layers import Attention, DeltaNet, Experts, FeedForward, Part, Store

__all__ = ["DraftHead", "Target", "opened"]

DRAFT_HEAD, DRAFT_LAYER = "mtp", "mtp.layers.0"


@dataclass(frozen=True, slots=True)
class Ends:
    """What target and draft head share: the embedding table and the head's matrix, both [V, D]."""

    table: torch.Tensor
    head: torch.Tensor


@dataclass(slots=True)
class Target:
    """The model itself."""

    ends: Ends
    part: Part
    mixers: list[Attention | DeltaNet]
    forwards: list[FeedForward | Experts]

    def forward(self, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The next N tokens -> stream before the final norm [N, D], logits [N, V]."""
        x = self.ends.table[list(tokens)]
        for mixer, forward in zip(self.mixers, self.forwards, strict=True):
            x = forward.forward(mixer.forward(x))
        return x, self.part.store(self.part.norm(x, "norm") @ self.ends.head.T)


@dataclass(slots=True)
class DraftHead:
    """One layer on the next token's embedding and the hidden state before it; own positions."""

    ends: Ends
    part: Part
    mixer: Attention
    feed: FeedForward | Experts

    def forward(
        self, tokens: Sequence[int], hidden: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """N tokens and the streams [N, D] before them -> own stream before its norm, logits.

        hidden: the target's stream before its final norm, or the head's own of the draft before.
        """
        embedding = self.part.norm(self.ends.table[list(tokens)], "pre_fc_norm_embedding")
        joined = torch.cat((embedding, self.part.norm(hidden, "pre_fc_norm_hidden")), -1)
        x = self.feed.forward(self.mixer.forward(self.part.linear(joined, "fc")))
        return x, self.part.store(self.part.norm(x, "norm") @ self.ends.head.T)

    def trim(self, length: int) -> None:
        """Forget what was fed behind the first `length` rows."""
        self.mixer.trim(length)


def opened(checkpoint: Checkpoint, store: Store) -> tuple[Target, DraftHead | None]:
    """Both halves of a checkpoint, no token seen; None where the config has no draft head."""
    outer: Mapping[str, Any] = checkpoint.config
    config, root = outer, "model"
    if "text_config" in outer:
        config, root = outer["text_config"], "model.language_model"
    read = cache(lambda name: checkpoint.read(name).float())
    table = read(f"{root}.embed_tokens.weight")
    ends = Ends(table, table if outer["tie_word_embeddings"] else read("lm_head.weight"))

    def part(module: str) -> Part:
        return Part(config, read, module, store)

    layers = [f"{root}.layers.{i}" for i in range(config["num_hidden_layers"])]
    kinds = {"linear_attention": DeltaNet, "full_attention": Attention}
    target = Target(
        ends,
        part(root),
        [
            kinds[kind](part(layer))
            for kind, layer in zip(config["layer_types"], layers, strict=True)
        ],
        [_feed_forward(part(layer)) for layer in layers],
    )
    if not config.get("mtp_num_hidden_layers"):
        return target, None
    layer = part(DRAFT_LAYER)
    return target, DraftHead(ends, part(DRAFT_HEAD), Attention(layer), _feed_forward(layer))


def _feed_forward(part: Part) -> FeedForward | Experts:
    return Experts(part) if "num_experts" in part.config else FeedForward(part)
