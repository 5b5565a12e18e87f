"""A sequence's committed state as one record of bytes: saved, and restored into another sequence.

The record is the same whichever forward wrote the state: two u64 (tokens, drafted tokens), then
every pool's bytes in a fixed order: the draft head's first, paged rows by position, slots whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from metpipe.engine.pools import Sequence

if TYPE_CHECKING:
    from metpipe.engine.model import Model

__all__ = ["read_place", "restore", "save"]

HEADER = struct.Struct("<QQ")


def save(model: Model, sequence: Sequence) -> torch.Tensor:
    """The record, uint8 [bytes] in the host's memory."""
    header = HEADER.pack(sequence.length, sequence.draft_length)
    parts = [torch.frombuffer(bytearray(header), dtype=torch.uint8)]
    for _, pool, rows in _places(model, sequence):
        parts.append(pool[rows].reshape(-1).view(torch.uint8).cpu())
    return torch.cat(parts)


def restore(model: Model, sequence: Sequence, record_B: torch.Tensor) -> None:
    """Write a record into a fresh sequence, whose lengths become the record's.

    Raises ValueError when the record is not that of a sequence of this model.
    """
    header = bytes(record_B[: HEADER.size].numpy())
    sequence.length, sequence.draft_length = HEADER.unpack(header)
    sequence.reached, sequence.draft_reached = sequence.length, sequence.draft_length
    model.pool.reserve(sequence, sequence.length)
    at = HEADER.size
    for _, pool, rows in _places(model, sequence):
        count = len(rows) * pool.shape[1] * pool.element_size()
        if at + count > len(record_B):
            raise ValueError(f"a record of {len(record_B)} bytes ends before its state does")
        content = record_B[at : at + count].clone().view(pool.dtype)
        pool[rows] = content.view(len(rows), pool.shape[1]).to(pool.device)
        at += count
    if at != len(record_B):
        raise ValueError(f"a record of {len(record_B)} bytes, of which {at} are state")


def read_place(model: Model, sequence: Sequence, state: str) -> int:
    """The byte of the sequence's record at which a value of this state lies that every step reads.

    Of a cache the first: at its end lies what a rejected draft wrote, dropped before it is read. Of
    a recurrent state the last f32: a convolution's oldest tap, which lies first, is shifted out.

    Raises ValueError when the record has no byte of that state.
    """
    at = HEADER.size
    for name, pool, rows in _places(model, sequence):
        count = len(rows) * pool.shape[1] * pool.element_size()
        if name == state and count:
            recurrent = model.circuit.states[name].kind == "recurrent"
            return at + count - pool.element_size() if recurrent else at
        at += count
    raise ValueError(f"the record has no byte of {state}")


def _places(model: Model, sequence: Sequence) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Each state, its pool, and the pool's rows that hold the sequence's committed state."""
    states, size = model.circuit.states, model.sizes.block_size
    for name in sorted(model.states, key=lambda name: states[name].section):
        if states[name].kind == "recurrent":
            yield name, model.states[name], torch.tensor([sequence.slot])
            continue
        draft = states[name].section == "draft"
        tokens = torch.arange(sequence.draft_length if draft else sequence.length)
        blocks = torch.tensor(sequence.blocks, dtype=torch.long)
        yield name, model.states[name], blocks[tokens // size] * size + tokens % size
