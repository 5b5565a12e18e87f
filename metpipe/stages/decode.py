"""Drives one forward through one prompt: prefill, then steps, each fed as the feed says."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from metpipe.diff.digest import HashBytes, logits_digest
from metpipe.diff.feeding import Feed
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model

__all__ = ["OnLogits", "UnownedBytes", "decode_prompt"]

OnLogits = Callable[[int | None, torch.Tensor], object]
"""Called with the step (None: the prefill) and its logits [V]; they are overwritten afterwards."""

MS = 1000.0


@dataclass(frozen=True, slots=True)
class UnownedBytes:
    """Digests of the state that the sequence did not own, before and after its run."""

    before: dict[str, str]
    after: dict[str, str]
    moved_at: int | None = None
    """the first step after which it had moved, where each step was checked"""


def decode_prompt(
    model: Model,
    forward: Forward,
    prompt: Sequence[int],
    steps: int,
    feed: Feed,
    *,
    on_logits: OnLogits,
    hash_bytes: HashBytes | None = None,
    check_steps: bool = False,
    tick: Callable[[], object] = lambda: None,
) -> tuple[Trace, UnownedBytes]:
    """One sequence from opening to closing. The trace holds digests; `on_logits` gets the bytes.

    With `check_steps` the bytes that the sequence does not own are digested after each step too.
    Its KV blocks are reserved before the first token, so that what it owns does not change.
    """
    sequence = model.open()
    try:
        model.pool.reserve(sequence, len(prompt) + steps)
        before = model.unowned_digests(sequence)
        logits_V = forward.prefill(sequence, prompt)
        on_logits(None, logits_V)
        prefill_digest = logits_digest(logits_V, hash_bytes=hash_bytes)
        digests, enqueue_ms, step_ms = [], [], []
        moved_at: int | None = None
        for step in range(steps):
            token = feed.next(logits_V)
            begin = time.perf_counter()
            logits_V = forward.decode(sequence, token)
            enqueued = time.perf_counter()
            kept_V = logits_V.clone()
            done = time.perf_counter()
            enqueue_ms.append((enqueued - begin) * MS)
            step_ms.append((done - begin) * MS)
            on_logits(step, kept_V)
            digests.append(logits_digest(kept_V, hash_bytes=hash_bytes))
            if check_steps and moved_at is None and model.unowned_digests(sequence) != before:
                moved_at = step
            tick()
        states = model.state_digests(sequence)
        after = model.unowned_digests(sequence)
    finally:
        model.close(sequence)
    trace = Trace(
        prompt=tuple(prompt),
        fed=tuple(feed.tokens[:steps]),
        prefill_digest=prefill_digest,
        step_digests=tuple(digests),
        state_digests=states,
        enqueue_ms=tuple(enqueue_ms),
        step_ms=tuple(step_ms),
    )
    return trace, UnownedBytes(before, after, moved_at)
