"""Digests of what sequences own in the state pools, and of what nobody owns.

A pool's unit is a token's row of a paged pool, or a slot of a recurrent one. All spans of a digest
are hashed in one call of the kernel set's own hash; BLAKE2b folds their hashes into one.
Shapes: S sequences, N spans.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from metpipe.circuit import Circuit
from metpipe.engine.pools import Sequence

__all__ = ["U64", "HashSpans", "StateDigests"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
HASH_BYTES = 16


class HashSpans(Protocol):
    """Hashes spans of memory: uint64 [N, 2]."""

    def __call__(self, *, addresses: I64, sizes: I64, key: int = 0) -> U64:
        """`addresses` and `sizes` in bytes, int64 [N]."""


@dataclass(frozen=True, slots=True)
class _Pools:
    """Pools of one kind: where they start, and the bytes of a unit."""

    names: tuple[str, ...]
    base: I64
    unit: I64

    @classmethod
    def of(cls, pools: Mapping[str, torch.Tensor]) -> _Pools:
        sizes = [pool.shape[1] * pool.element_size() for pool in pools.values()]
        return cls(
            tuple(pools),
            np.array([pool.data_ptr() for pool in pools.values()], dtype=np.int64),
            np.array(sizes, dtype=np.int64),
        )

    def spans(self, first: I64, count: I64) -> tuple[I64, I64]:
        """For each pool, runs of `count` units from unit `first` on: addresses, sizes, flat."""
        at = self.base[:, None] + self.unit[:, None] * first[None, :]
        return at.ravel(), (self.unit[:, None] * count[None, :]).ravel()


@dataclass(frozen=True, slots=True)
class StateDigests:
    """The digests of one model's pools."""

    paged: _Pools
    drafted_pools: _Pools
    """paged pools of the draft head"""
    recurrent: _Pools
    names: tuple[str, ...]
    """every state, in the circuit's order"""
    hash_spans: HashSpans
    block_size: int
    device: torch.device
    """where the pools lie, and so whatever is hashed"""

    @classmethod
    def of_model(
        cls,
        circuit: Circuit,
        states: Mapping[str, torch.Tensor],
        functions: Mapping[str, Callable[..., Any]],
        block_size: int,
    ) -> StateDigests:
        """For these pools; `functions` are the kernel set's."""

        def those(kind: str, section: str) -> _Pools:
            return _Pools.of(
                {
                    name: pool
                    for name, pool in states.items()
                    if (circuit.states[name].kind, circuit.states[name].section) == (kind, section)
                }
            )

        return cls(
            those("paged_kv", "main"),
            those("paged_kv", "draft"),
            those("recurrent", "main"),
            tuple(name for name in circuit.states if name in states),
            functions["hash.hash128_spans"],
            block_size,
            next(iter(states.values())).device,
        )

    def of(self, sequence: Sequence) -> dict[str, str]:
        """State -> 128-bit hex over the positions that the sequence has committed, or its slot."""
        found = {}
        for pools, length in (
            (self.paged, sequence.length),
            (self.drafted_pools, sequence.draft_length),
        ):
            first, count = self._block_runs(sequence, length)
            found.update(self._by_pool(pools, first, count))
        one = np.ones(1, dtype=np.int64)
        found.update(self._by_pool(self.recurrent, one * sequence.slot, one))
        return {name: found[name] for name in self.names}

    def unowned(
        self, owners: Iterable[Sequence], num_blocks: int, num_slots: int, *, dummies: bool
    ) -> dict[str, str]:
        """State -> 128-bit hex over every block and slot that no owner holds.

        `dummies`: those of padding rows too, where no step of these owners has padding.
        """
        owners = tuple(owners)
        held = [block for owner in owners for block in owner.blocks]
        first, count = runs_without(held, num_blocks - (not dummies))
        found = {}
        for pools in (self.paged, self.drafted_pools):
            found.update(self._by_pool(pools, first * self.block_size, count * self.block_size))
        slots = runs_without([owner.slot for owner in owners], num_slots + dummies)
        found.update(self._by_pool(self.recurrent, *slots))
        return found

    def block_rows(self, sequence: Sequence) -> dict[str, U64]:
        """Paged state -> the hash of each row of the sequence's blocks, uint64 [rows, 2]."""
        num_rows = len(sequence.blocks) * self.block_size
        rows = self._token_rows([sequence], [num_rows], [num_rows])
        found: dict[str, U64] = {}
        for pools in (self.paged, self.drafted_pools):
            addresses, sizes = pools.spans(rows, np.ones(num_rows, dtype=np.int64))
            hashes = self.hash_spans(addresses=addresses, sizes=sizes)
            found.update(zip(pools.names, hashes.reshape(-1, num_rows, 2), strict=True))
        return found

    def moved_behind(self, sequence: Sequence, before: Mapping[str, U64]) -> tuple[str, ...]:
        """States in whose blocks a row moved, since `before`, that no step has reached yet."""
        moved = []
        for name, rows in self.block_rows(sequence).items():
            drafted = name in self.drafted_pools.names
            reached = sequence.draft_reached if drafted else sequence.reached
            known = before[name]
            if not np.array_equal(rows[reached : len(known)], known[reached:]):
                moved.append(f"{name}, beyond token {reached}")
        return tuple(moved)

    def written(self, sequences: Items[Sequence], counts: Items[int]) -> tuple[str, ...]:
        """Per sequence, 256-bit hex over its last `counts` tokens' keys and values and its slot.

        What a step owns and may write: the main model's paged rows of the step's tokens, and the
        whole recurrent state.
        """
        rows = self._token_rows(sequences, [one.length for one in sequences], counts)
        slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        num_rows, num_slots = len(rows), len(slots)
        paged = self.paged.spans(rows, np.ones(num_rows, dtype=np.int64))
        recurrent = self.recurrent.spans(slots, np.ones(num_slots, dtype=np.int64))
        hashes = self.hash_spans(
            addresses=np.concatenate((paged[0], recurrent[0])),
            sizes=np.concatenate((paged[1], recurrent[1])),
        )
        split = len(paged[0])
        by_row = hashes[:split].reshape(-1, num_rows, 2).swapaxes(0, 1)
        by_slot = hashes[split:].reshape(-1, num_slots, 2).swapaxes(0, 1)
        return self._joined(by_row, by_slot, counts)

    def drafted(self, sequences: Items[Sequence], count: int) -> tuple[str, ...]:
        """Per sequence, 128-bit hex over its last `count` tokens in the draft head's cache."""
        lengths, counts = [one.draft_length for one in sequences], [count] * len(sequences)
        rows = self._token_rows(sequences, lengths, counts)
        addresses, sizes = self.drafted_pools.spans(rows, np.ones(len(rows), dtype=np.int64))
        hashes = self.hash_spans(addresses=addresses, sizes=sizes)
        by_row = hashes.reshape(-1, len(rows), 2).swapaxes(0, 1)
        each = count * by_row.shape[1] * HASH_BYTES
        at = each * np.arange(len(sequences), dtype=np.int64)
        return self._fold(by_row.ravel(), at, np.full_like(at, each))

    def _joined(self, by_row: U64, by_slot: U64, counts: Items[int]) -> tuple[str, ...]:
        """Per sequence, the hash of its rows' hashes, then of its slot's."""
        row_bytes, slot_bytes = (h.shape[1] * HASH_BYTES for h in (by_row, by_slot))
        sizes = np.asarray(counts, dtype=np.int64)
        first = np.cumsum(sizes) - sizes
        order = np.arange(len(sizes), dtype=np.int64)
        folded = self._fold(
            np.concatenate((by_row.ravel(), by_slot.ravel())),
            np.concatenate((first * row_bytes, by_row.nbytes + order * slot_bytes)),
            np.concatenate((sizes * row_bytes, np.full_like(sizes, slot_bytes))),
        )
        return tuple(a + b for a, b in zip(folded, folded[len(sizes) :], strict=False))

    def of_rows(self, content_RV: torch.Tensor, key: int) -> tuple[str, ...]:
        """128-bit hex of each row's bytes."""
        content_RV = content_RV.to(self.device).contiguous()
        size = content_RV.shape[1] * content_RV.element_size()
        at = content_RV.data_ptr() + size * np.arange(len(content_RV), dtype=np.int64)
        return hexes_of(self.hash_spans(addresses=at, sizes=np.full_like(at, size), key=key))

    def _by_pool(self, pools: _Pools, first: I64, count: I64) -> dict[str, str]:
        """Pool -> the hash of the hashes of its runs of units, in their order."""
        if not pools.names:
            return {}
        addresses, sizes = pools.spans(first, count)
        hashes = self.hash_spans(addresses=addresses, sizes=sizes)
        each = len(first) * HASH_BYTES
        at = each * np.arange(len(pools.names), dtype=np.int64)
        folded = self._fold(hashes.ravel(), at, np.full_like(at, each))
        return dict(zip(pools.names, folded, strict=True))

    def _fold(self, hashes: U64, first: I64, sizes: I64) -> tuple[str, ...]:
        """128-bit hex of each span of hashes; `first` and `sizes` in bytes.

        On the host, where the hashes are: another launch (on a GPU two copies too) takes longer.
        """
        content = hashes.tobytes()
        return tuple(
            hashlib.blake2b(content[at : at + size], digest_size=HASH_BYTES).hexdigest()
            for at, size in zip(first.tolist(), sizes.tolist(), strict=True)
        )

    def _block_runs(self, sequence: Sequence, length: int) -> tuple[I64, I64]:
        """The first row of each block that holds a committed token, and how many it holds."""
        full, rest = divmod(length, self.block_size)
        blocks = sequence.blocks[: full + bool(rest)]
        count = [self.block_size] * full + [rest] * bool(rest)
        first = np.array(blocks, dtype=np.int64) * self.block_size
        return first, np.array(count, dtype=np.int64)

    def _token_rows(
        self, sequences: Items[Sequence], lengths: Items[int], counts: Items[int]
    ) -> I64:
        """Pool row of each sequence's last `counts` of `lengths` tokens, sequence by sequence."""
        size = self.block_size
        return np.array(
            [
                sequence.blocks[token // size] * size + token % size
                for sequence, length, count in zip(sequences, lengths, counts, strict=True)
                for token in range(length - count, length)
            ],
            dtype=np.int64,
        )


def runs_without(held: Iterable[int], size: int) -> tuple[I64, I64]:
    """The runs of units below `size` that are not held: first unit, and count, of each."""
    free = np.ones(size + 2, dtype=np.int8)
    free[0] = free[-1] = 0
    free[1 + np.array(list(held), dtype=np.int64)] = 0
    edges = np.flatnonzero(np.diff(free)).astype(np.int64)
    return edges[::2], edges[1::2] - edges[::2]


def hexes_of(hashes: U64) -> tuple[str, ...]:
    """Each (low, high) as 32 hex digits."""
    return tuple(f"{high:016x}{low:016x}" for low, high in hashes.tolist())
