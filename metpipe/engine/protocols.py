"""What the stages drive, as small protocols: an adapter for another engine implements what it can.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

import torch

from metpipe.engine.disclosure import Disclosure
from metpipe.engine.pools import Sequence
from metpipe.engine.selection import ForwardSelect

__all__ = ["Core", "Disclose", "RunningForward", "State", "StatefulCore"]


class Disclose(Protocol):
    """Says what it ran."""

    def disclose(self) -> Disclosure:
        """Plans, kernels and launches so far, as seen by the forward itself."""


class RunningForward(Disclose, Protocol):
    """A forward with programs of its own. Logits are views that the next step overwrites."""

    name: str

    def prefill(self, sequence: Sequence, tokens: Items[int]) -> torch.Tensor:
        """Run a prompt; logits [V] of its last token."""

    def decode(self, sequence: Sequence, token: int) -> torch.Tensor:
        """Append one token; logits [V] after it."""

    def close(self) -> None:
        """Give programs and buffers back."""


class Core(Protocol):
    """The least that a diff needs of an engine."""

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""

    def open(self, reserve: int = 0) -> Sequence:
        """A fresh sequence, with room for `reserve` tokens."""

    def close(self, sequence: Sequence) -> None:
        """Give the sequence's slot and blocks back."""

    def forward(self, select: ForwardSelect) -> RunningForward:
        """A forward that owns its programs; nothing is "currently selected"."""

    def hash_bytes(self, content: torch.Tensor) -> str:
        """128-bit hex of a tensor's bytes, computed where they live."""


class State(Protocol):
    """Lets the bytes of its state be digested."""

    def state_digests(self, sequence: Sequence) -> dict[str, str]:
        """State -> hex over what the sequence has committed, wherever it lies."""

    def unowned_digests(self, *owners: Sequence) -> dict[str, str]:
        """State -> hex over what none of these sequences owns."""


class StatefulCore(Core, State, Protocol):
    """What the single-sequence diff drives."""
