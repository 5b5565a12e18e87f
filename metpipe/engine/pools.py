"""Who owns which KV block and which state slot: LIFO free lists, no tensors.

A free list is a stack that hands out 0, 1, 2, ... when new, and the last freed first: the layout
of a run repeats exactly when its sequences are freed in reverse order of their opening.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from metpipe.errors import ConfigError

__all__ = ["FreeList", "Sequence", "SequencePool"]


@dataclass(slots=True)
class FreeList:
    """A stack of the free units 0..size-1; `name` and `knob` word the message when it is empty."""

    size: int
    name: str
    knob: str
    _stack: list[int] = field(init=False)
    _owned: set[int] = field(init=False)
    taken_below: int = 0
    """no unit from this one on was handed out since this was last set to 0"""

    def __post_init__(self) -> None:
        self._stack = list(range(self.size - 1, -1, -1))
        self._owned = set()

    @property
    def num_free(self) -> int:
        """Units that nobody owns."""
        return len(self._stack)

    def take(self) -> int:
        """The unit on top of the stack.

        Raises:
            ConfigError: none is free.
        """
        if not self._stack:
            raise ConfigError(
                f"the pool of {self.size} {self.name} is empty: raise {self.knob} or run fewer or "
                "shorter sequences"
            )
        unit = self._stack.pop()
        self._owned.add(unit)
        self.taken_below = max(self.taken_below, unit + 1)
        return unit

    def give(self, unit: int) -> None:
        """Put an owned unit back on top."""
        if unit not in self._owned:
            raise ValueError(f"{self.name}: unit {unit} is freed but not owned")
        self._owned.remove(unit)
        self._stack.append(unit)


@dataclass(slots=True, eq=False)
class Sequence:
    """One open sequence: its state slot, its KV blocks in order, its committed length in tokens."""

    slot: int
    blocks: list[int] = field(default_factory=list)
    length: int = 0
    draft_length: int = 0
    """tokens of the draft head's own cache, which starts empty and lies in the same blocks"""
    reached: int = 0
    """tokens that some step has written, rejected ones too: beyond them its blocks are reserved"""
    draft_reached: int = 0
    """the same of the draft head's cache"""
    open: bool = True


@dataclass(slots=True)
class SequencePool:
    """Opens, grows and closes sequences.

    The last block is a dummy that no sequence owns, and so is the state slot behind the last one.
    """

    num_blocks: int
    num_slots: int
    block_size: int
    blocks: FreeList = field(init=False)
    slots: FreeList = field(init=False)

    def __post_init__(self) -> None:
        self.blocks = FreeList(self.num_blocks - 1, "KV blocks", "slots or serve.max_seq_len")
        self.slots = FreeList(self.num_slots, "sequence slots", "slots")

    @property
    def dummy_block(self) -> int:
        """The block that unused block-table entries and padding rows point to."""
        return self.num_blocks - 1

    @property
    def dummy_slot(self) -> int:
        """The state slot that padding rows use."""
        return self.num_slots

    def open(self) -> Sequence:
        """A new sequence on the next free slot, without blocks."""
        return Sequence(self.slots.take())

    def reserve(self, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence blocks for `num_tokens` tokens in all."""
        while len(sequence.blocks) * self.block_size < num_tokens:
            sequence.blocks.append(self.blocks.take())

    def reserve_scattered(self, sequences: Items[Sequence], num_tokens: Items[int]) -> None:
        """As `reserve` for each, one block of each in turn: no sequence's blocks are adjacent."""
        while True:
            short = [
                sequence
                for sequence, tokens in zip(sequences, num_tokens, strict=True)
                if len(sequence.blocks) * self.block_size < tokens
            ]
            if not short:
                return
            for sequence in short:
                sequence.blocks.append(self.blocks.take())

    def close(self, sequence: Sequence) -> None:
        """Return the sequence's blocks (last first) and its slot."""
        if not sequence.open:
            raise ValueError("closing a sequence twice")
        while sequence.blocks:
            self.blocks.give(sequence.blocks.pop())
        self.slots.give(sequence.slot)
        sequence.open = False
