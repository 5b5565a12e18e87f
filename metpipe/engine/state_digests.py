"""Digests of what sequences own in the state pools, and of what nobody owns.

Shapes: S sequences, M tokens written by a step over all of them, P paged pools, Q recurrent pools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from metpipe.circuit import Circuit
from metpipe.engine.pools import Sequence

__all__ = ["StateDigests", "hex_of"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class StateDigests:
    """The digests of one model's pools, by the kernel set's own hash."""

    circuit: Circuit
    states: Mapping[str, torch.Tensor]
    functions: Mapping[str, Callable[..., Any]]
    block_size: int

    def of(self, sequence: Sequence) -> dict[str, str]:
        """State -> 128-bit hex over the positions that the sequence has committed, or its slot."""
        found = {}
        for name in self.states:
            if self._is_recurrent(name):
                found[name] = hex_of(self._slots(name, [sequence.slot]))
            else:
                draft = self.circuit.states[name].section == "draft"
                length = sequence.draft_length if draft else sequence.length
                found[name] = self._blocks(name, sequence.blocks, length)
        return found

    def unowned(
        self, owners: Iterable[Sequence], num_blocks: int, num_slots: int
    ) -> dict[str, str]:
        """State -> 128-bit hex over every block and slot that no owner holds and no dummy is."""
        owners = tuple(owners)
        held = {block for owner in owners for block in owner.blocks}
        blocks = [block for block in range(num_blocks - 1) if block not in held]
        slots = sorted(set(range(num_slots)) - {owner.slot for owner in owners})
        return {
            name: hex_of(self._slots(name, slots))
            if self._is_recurrent(name)
            else self._blocks(name, blocks, len(blocks) * self.block_size)
            for name in self.states
        }

    def written(self, sequences: Items[Sequence], counts: Items[int]) -> tuple[str, ...]:
        """Per sequence, 256-bit hex over its last `counts` tokens' keys and values and its slot.

        What a step owns and may write: the main model's paged rows of the step's tokens, and the
        whole recurrent state.
        """
        slots = np.array([sequence.slot for sequence in sequences], dtype=np.int64)
        kv = self._of_tokens(self._pool_rows(sequences, counts), counts)
        recurrent = self._of_slots(slots)
        return tuple(
            f"{low[1]:016x}{low[0]:016x}{high[1]:016x}{high[0]:016x}"
            for low, high in zip(kv.tolist(), recurrent.tolist(), strict=True)
        )

    def of_rows(self, content_RV: torch.Tensor, key: int) -> tuple[str, ...]:
        """128-bit hex of each row's bytes."""
        content_RV = content_RV.contiguous()
        size = content_RV.shape[1] * content_RV.element_size()
        at = content_RV.data_ptr() + size * np.arange(len(content_RV), dtype=np.int64)
        found = self.functions["hash.hash128_spans"](
            addresses=at, sizes=np.full(len(at), size, dtype=np.int64), key=key
        )
        return tuple(f"{high:016x}{low:016x}" for low, high in found.tolist())

    def _of_tokens(self, rows_M: I64, counts: Items[int]) -> U64:
        """[S, 2]: each sequence's written rows of all paged pools."""
        pools = [self.states[name] for name in self._main(paged=True)]
        per_row = self._spans(pools, rows_M)
        ends = np.cumsum(counts)
        return self._folded(per_row, ends - np.asarray(counts), np.asarray(counts))

    def _of_slots(self, slots_S: I64) -> U64:
        """[S, 2]: each sequence's slot of all recurrent pools."""
        pools = [self.states[name] for name in self._main(paged=False)]
        per_slot = self._spans(pools, slots_S)
        ones = np.ones(len(slots_S), dtype=np.int64)
        return self._folded(per_slot, np.arange(len(slots_S), dtype=np.int64), ones)

    def _spans(self, pools: Items[torch.Tensor], rows: I64) -> U64:
        """[rows, pools, 2]: the hash of each row of each pool."""
        if not pools:
            return np.zeros((len(rows), 0, 2), dtype=np.uint64)
        base = np.array([pool.data_ptr() for pool in pools], dtype=np.int64)
        size = np.array([pool.shape[1] * pool.element_size() for pool in pools], dtype=np.int64)
        at = (base[None, :] + rows[:, None] * size[None, :]).ravel()
        found = self._hash_spans(at, np.tile(size, len(rows)))
        return found.reshape(len(rows), len(pools), 2)

    def _folded(self, hashes: U64, first: I64, count: I64) -> U64:
        """[S, 2]: the hash of `count` consecutive rows of hashes from `first` on."""
        row_bytes = hashes.shape[1] * 16
        kept = np.ascontiguousarray(hashes)
        return self._hash_spans(kept.ctypes.data + first * row_bytes, count * row_bytes)

    def _hash_spans(self, addresses: I64, sizes: I64) -> U64:
        found: U64 = self.functions["hash.hash128_spans"](addresses=addresses, sizes=sizes)
        return found

    def _pool_rows(self, sequences: Items[Sequence], counts: Items[int]) -> I64:
        """Pool row of each written token, sequence by sequence."""
        size = self.block_size
        return np.array(
            [
                sequence.blocks[token // size] * size + token % size
                for sequence, count in zip(sequences, counts, strict=True)
                for token in range(sequence.length - count, sequence.length)
            ],
            dtype=np.int64,
        )

    def _main(self, *, paged: bool) -> list[str]:
        return [
            name
            for name in self.states
            if self.circuit.states[name].section == "main" and self._is_recurrent(name) != paged
        ]

    def _is_recurrent(self, name: str) -> bool:
        return self.circuit.states[name].kind == "recurrent"

    def _blocks(self, name: str, blocks: list[int], num_tokens: int) -> str:
        """Hash the first `num_tokens` positions of these blocks."""
        digest = self.functions["hash.hash128_rows"](
            pool=self.states[name],
            block_table=torch.tensor(blocks, dtype=torch.int32),
            count=num_tokens,
            block_size=self.block_size,
        )
        return hex_of(digest)

    def _slots(self, name: str, slots: Items[int]) -> int:
        """One hash over these slots' states, in this order."""
        found: int = self.functions["hash.hash128"](self.states[name][list(slots)])
        return found


def hex_of(digest: int) -> str:
    """A 128-bit digest as 32 hex digits."""
    return f"{digest:032x}"
