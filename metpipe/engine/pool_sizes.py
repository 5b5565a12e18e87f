"""What the pools and step buffers of a model are made for."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["PoolSizes"]


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Units of each pool, and the widest step of each mode. The last block is the dummy."""

    num_blocks: int
    num_slots: int
    """state slots that sequences own; the pool holds one more, the dummy"""
    block_size: int
    max_seq_len: int
    max_prefill_rows: int
    runs: tuple[tuple[str, int], ...]
    """(mode, rows) of the widest step of each mode that will run"""
    snapshot_rows: int
    """recurrent states kept between the rows of one verify step, over all its sequences"""

    @property
    def max_rows(self) -> int:
        """Rows of the widest step."""
        return max(rows for _, rows in self.runs)

    @property
    def max_head_rows(self) -> int:
        """Rows of logits of the widest step: a prefill has one, other modes all of theirs."""
        return max((rows for mode, rows in self.runs if mode != "prefill"), default=1)

    @property
    def max_draft_rows(self) -> int:
        """Sequences of the widest step of the draft head; 0 where none runs."""
        return max((rows for mode, rows in self.runs if mode == "draft"), default=0)
