"""What a reader must know of a run beside its verdict: a sentence for each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from metpipe.config import Run
from metpipe.engine.weights import weight_shapes
from metpipe.nouns import number_of
from metpipe.stages.live import Live
from metpipe.stages.modes.case import Case

__all__ = ["notes"]

EXECUTED = "BF16"


def notes(live: Live) -> Iterator[str]:
    """Of a run that executes a model; a plan has notes of its own."""
    if live.run.pipeline.diff:
        yield from _rounded_weights(live)
        yield from _beyond_positions(live)
        yield from _pairs_left_out(live.run)
        yield from _split_prefills(live)


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


def _pairs_left_out(run: Run) -> Iterator[str]:
    """Prompts that a chunk of the list does not split."""
    for chunk in run.prefill_chunk or ():
        whole = [length for length in run.prefill or () if length <= chunk]
        if whole:
            lengths = ", ".join(f"{length:,}" for length in whole)
            yield (
                f"prefill of {lengths} {'token' if whole == [1] else 'tokens'} is not run in "
                f"chunks of {chunk:,}: a chunk is shorter than its prompt"
            )


def _split_prefills(live: Live) -> Iterator[str]:
    """Prompts that are called whole, and are longer than one pass."""
    limit = live.serve().max_prefill_tokens
    split = [
        case for case in live.all_cases() if case.chunk is None and _longest_pass(case) > limit
    ]
    if split:
        cases = "; ".join(case.full_name for case in split)
        yield (
            f"serve.max_prefill_tokens={limit}: prompts longer than that are prefilled in passes "
            f"of {number_of(limit, 'token')}: {cases}"
        )


def _longest_pass(case: Case) -> int:
    """Tokens that are prefilled without a chunk's bound; a restored prefix in its own run."""
    return max(max(map(len, case.prompts)) - case.restored, case.restored)
