"""Which tile a linear runs with: a matter of speed alone, since tiles change no bits (dot.py)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tile", "tile_for"]

HEAD_OUTPUTS = 65536
"""More outputs than a layer's matrices have: those of a vocabulary."""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and outputs of a program, its step through k, and how it is scheduled."""

    r: int
    n: int
    k: int
    swap: bool
    warps: int
    stages: int

    @property
    def constants(self) -> tuple[int, int, int]:
        """R, N, K of the kernels."""
        return self.r, self.n, self.k


def tile_for(rows: int, n: int, k: int, weights: int = 1) -> Tile:
    """The tile of `rows` rows through `weights` matrices [n, k] at once.

    The best of a grid on an H200, rounded to few cases: what waits for memory wants many small
    programs, each with much of k under way.
    """
    if rows > 64:
        return Tile(128, 64, 64, False, 4, 3)
    if rows > 16:
        return Tile(64, 32, 128, False, 4, 3)
    if weights > 1:
        return Tile(16, 32, 128, False, 4, 4)
    if n > HEAD_OUTPUTS:
        return Tile(16, 64, 128, True, 4, 3)
    if n == k and k % 256 == 0:
        return Tile(16, 64, 256, True, 4, 5)
    if n < k and k % 512 == 0:
        return Tile(16, 16, 512, False, 2, 3)
    return Tile(16, 64, 128, True, 4, 5)
