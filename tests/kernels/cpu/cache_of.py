"""A paged cache with scattered blocks, and rows that stand at different positions in it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from tests.kernels.cpu.values import make

POSITIONS = (0, 3, 15, 16, 17, 40, 31, 32, 99, 63, 64, 1, 2, 47, 48, 50, 98)
LONGEST = 100


@lru_cache(maxsize=3)
def _pools(kind: str, size: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    return make(kind, 24, size, dim), make(kind, 25, size, dim)


@dataclass(frozen=True)
class Cache:
    """Shapes of q, k, v and the pools; every row is a sequence of its own."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int = 16
    kind: str = "normal"

    def q(self, rows: int) -> torch.Tensor:
        return make(self.kind, 21, rows, self.heads * self.head_dim)

    def k(self, rows: int) -> torch.Tensor:
        return make(self.kind, 22, rows, self.kv_heads * self.head_dim)

    def v(self, rows: int) -> torch.Tensor:
        return make(self.kind, 23, rows, self.kv_heads * self.head_dim)

    def pools(self) -> dict[str, torch.Tensor]:
        size = len(POSITIONS) * self._blocks * self.block_size
        k_pool, v_pool = _pools(self.kind, size, self.kv_heads * self.head_dim)
        return {"k_pool": k_pool.clone(), "v_pool": v_pool.clone()}

    def where(self, rows: int) -> dict[str, torch.Tensor | int]:
        seed = torch.Generator().manual_seed(26)
        blocks = torch.randperm(len(POSITIONS) * self._blocks, generator=seed)
        table = blocks.int().view(-1, self._blocks)[:rows].contiguous()
        return {
            "positions": torch.tensor(POSITIONS[:rows], dtype=torch.int32),
            "block_table": table,
            "block_size": self.block_size,
        }

    def rope(self, rows: int) -> dict[str, torch.Tensor]:
        half = self.head_dim // 2
        angle = torch.arange(LONGEST)[:, None] * 10000.0 ** -(torch.arange(half) / half)
        return {
            "cos": angle.cos(),
            "sin": angle.sin(),
            "positions": torch.tensor(POSITIONS[:rows], dtype=torch.int32),
        }

    def rows_seen(self, rows: int) -> torch.Tensor:
        """Pool rows that the rows may attend to."""
        table = self.where(rows)["block_table"]
        seen = []
        for row, position in enumerate(POSITIONS[:rows]):
            tokens = torch.arange(position + 1)
            at = table[row][tokens // self.block_size] * self.block_size
            seen.append(at + tokens % self.block_size)
        return torch.cat(seen).long()

    @property
    def _blocks(self) -> int:
        return -(-LONGEST // self.block_size)
