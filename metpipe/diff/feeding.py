"""Which token is fed at which step.

The reference is greedy and fixes the stream; every later run is fed that stream whatever its own
logits say, so all runs see the same inputs and one early difference cannot become another text.
The token at index s of the fed stream is fed at step s, so logits of step s are the first that it
can move.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from metpipe.diff.argmax import argmax

__all__ = ["Feed", "Forced", "Greedy", "change_row", "change_token", "changed_step"]


class Greedy:
    """Feeds each step the argmax of the logits before it, and keeps what it fed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def next(self, logits_V: torch.Tensor) -> int:
        """The token that follows these logits: of the prefill first, then of each step."""
        self.tokens.append(argmax(logits_V))
        return self.tokens[-1]


class Forced:
    """Feeds a recorded stream; the logits are not looked at, so no device is waited for."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = tuple(tokens)
        self.fed = 0

    def next(self, logits_V: torch.Tensor) -> int:
        """The recorded token of the next step; raises IndexError past the recorded stream."""
        self.fed += 1
        return self.tokens[self.fed - 1]


Feed = Greedy | Forced


def changed_step(num_steps: int) -> int:
    """The step at which a detection control changes its input: half way.

    Raises ValueError without steps: there would be nothing to change.
    """
    if num_steps < 1:
        raise ValueError(f"{num_steps} steps: a control needs a step to change.")
    return num_steps // 2


def change_token(fed: Sequence[int], at: int, vocab_size: int) -> tuple[int, ...]:
    """The stream with the token fed at step `at` replaced by the next id, modulo the vocabulary.

    Raises ValueError when `at` is no step, or one id is the whole vocabulary.
    """
    if not 0 <= at < len(fed):
        raise ValueError(f"step {at} is not one of the {len(fed)} fed steps.")
    if vocab_size < 2:
        raise ValueError("a vocabulary of 1 id has no other token to feed.")
    return (*fed[:at], (fed[at] + 1) % vocab_size, *fed[at + 1 :])


def change_row(
    fed_rows: Sequence[Sequence[int]], row: int, at: int, vocab_size: int
) -> tuple[tuple[int, ...], ...]:
    """The streams of a batch with one row's token changed at one step."""
    if not 0 <= row < len(fed_rows):
        raise ValueError(f"row {row} is not one of the {len(fed_rows)} rows.")
    return tuple(
        change_token(fed, at, vocab_size) if i == row else tuple(fed)
        for i, fed in enumerate(fed_rows)
    )
