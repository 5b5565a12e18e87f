"""What a reader must know of a run beside its verdict: a sentence for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from metpipe.engine.weights import weight_shapes
from metpipe.stages.live import Live

__all__ = ["notes"]

EXECUTED = "BF16"


def notes(live: Live) -> Iterator[str]:
    """Of a run that executes a model; a plan has notes of its own."""
    if live.run.pipeline.diff:
        yield from _rounded_weights(live)
        yield from _beyond_positions(live)


def _rounded_weights(live: Live) -> Iterator[str]:
    """Weights that the engine does not run in the type that they are stored in."""
    checkpoint = live.checkpoint()
    read = weight_shapes(live.circuit(), checkpoint.tensors)
    types = Counter(checkpoint.types[name] for name in read)
    total = types.total()
    others = [f"{count} of {total} tensors in {kind}" for kind, count in types.most_common()
              if kind != EXECUTED]  # fmt: skip
    if others:
        yield (
            f"the checkpoint stores {', '.join(others)}; they are rounded to bf16 when they are "
            "read, for the reference and for every variant"
        )


def _beyond_positions(live: Live) -> Iterator[str]:
    """Sequences longer than the model was made for: the forwards still compare."""
    stated = live.circuit().params.get("max_position_embeddings")
    if stated is None:
        return
    limit = int(json.loads(stated))
    longest = max(live.all_cases(), key=lambda case: max(case.reserved))
    tokens = max(longest.reserved)
    if tokens > limit:
        yield (
            f"{longest.full_name} holds up to {tokens:,} tokens, and the checkpoint's config says "
            f"max_position_embeddings={limit:,}: the bits are compared, but the model was not made "
            "for such lengths"
        )
