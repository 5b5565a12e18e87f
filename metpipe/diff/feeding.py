"""What a detection control feeds instead: the next id, at the step half way.

The token at index s of a stream is fed at step s, so logits of step s are the first that it moves.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["change_token", "changed_step"]


def changed_step(num_steps: int) -> int:
    """The step at which a detection control changes its input: half way.

    Raises ValueError without steps: there would be nothing to change.
    """
    if num_steps < 1:
        raise ValueError(f"{num_steps} steps: a control needs a step to change.")
    return num_steps // 2


def change_token(fed: Sequence[int], at: int, vocab_size: int) -> tuple[int, ...]:
    """The tokens with the one at `at` replaced by the next id, modulo the vocabulary.

    Raises ValueError when `at` is none of them, or one id is the whole vocabulary.
    """
    if not 0 <= at < len(fed):
        raise ValueError(f"{at} is not one of the {len(fed)} tokens.")
    if vocab_size < 2:
        raise ValueError("a vocabulary of 1 id has no other token to feed.")
    return (*fed[:at], (fed[at] + 1) % vocab_size, *fed[at + 1 :])
