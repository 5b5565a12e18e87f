"""Drives one forward through one prompt: prefill, then steps, each fed as the feed says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from metpipe.diff.digest import HashBytes, logits_digest
from metpipe.diff.feeding import Feed
from metpipe.diff.trace import Trace
from metpipe.engine.pools import Sequence as Opened
from metpipe.engine.protocols import RunningForward, StatefulCore

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
    model: StatefulCore,
    forward: RunningForward,
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
    sequence = model.open(reserve=len(prompt) + steps)
    run = _Recorded(forward, sequence, on_logits, hash_bytes)
    moved_at: int | None = None
    try:
        before = model.unowned_digests(sequence)
        logits_V = run.prefill(prompt)
        for step in range(steps):
            logits_V = run.decode(step, feed.next(logits_V))
            if check_steps and moved_at is None and model.unowned_digests(sequence) != before:
                moved_at = step
            tick()
        states, after = model.state_digests(sequence), model.unowned_digests(sequence)
    finally:
        model.close(sequence)
    return run.trace(prompt, feed.tokens[:steps], states), UnownedBytes(before, after, moved_at)


@dataclass(slots=True)
class _Recorded:
    """One sequence under one forward, with the digest and the times of each step."""

    forward: RunningForward
    sequence: Opened
    on_logits: OnLogits
    hash_bytes: HashBytes | None
    digests: list[str] = field(default_factory=list)
    """the prefill's, then those of the steps"""
    enqueue_ms: list[float] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)

    def prefill(self, prompt: Sequence[int]) -> torch.Tensor:
        """Logits [V] of the prompt's last token."""
        return self._noted(None, self.forward.prefill(self.sequence, prompt))

    def decode(self, step: int, token: int) -> torch.Tensor:
        """A copy of the logits [V] after one more token."""
        begin = time.perf_counter()
        logits_V = self.forward.decode(self.sequence, token)
        enqueued = time.perf_counter()
        kept_V = logits_V.clone()
        done = time.perf_counter()
        self.enqueue_ms.append((enqueued - begin) * MS)
        self.step_ms.append((done - begin) * MS)
        return self._noted(step, kept_V)

    def trace(
        self, prompt: Sequence[int], fed: Sequence[int], state_digests: Mapping[str, str]
    ) -> Trace:
        """The record of the whole run."""
        return Trace(
            prompt=tuple(prompt),
            fed=tuple(fed),
            prefill_digest=self.digests[0],
            step_digests=tuple(self.digests[1:]),
            state_digests=state_digests,
            enqueue_ms=tuple(self.enqueue_ms),
            step_ms=tuple(self.step_ms),
        )

    def _noted(self, step: int | None, logits_V: torch.Tensor) -> torch.Tensor:
        self.on_logits(step, logits_V)
        self.digests.append(logits_digest(logits_V, hash_bytes=self.hash_bytes))
        return logits_V
