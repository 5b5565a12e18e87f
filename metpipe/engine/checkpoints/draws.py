"""Streams of numbers that are the same bits on every machine, and bf16 tables to draw from.

Streams are SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
2014): integer arithmetic on a counter. A draw of 16 bits picks one of 65,536 values that were
computed with +, * and sqrt alone, which IEEE 754 fixes to the last bit.
"""

from __future__ import annotations

import hashlib
import math
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = [
    "F64",
    "GENERATOR",
    "I64",
    "U16",
    "bf16_bits",
    "bf16_values",
    "draw",
    "order",
    "table",
    "uniform",
]

GENERATOR = "splitmix64/1"
"""Names the way from draws to values; raise the number when it changes. Part of the digest."""

GAMMA, MIX_A, MIX_B = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
CHUNK_DRAWS = 1 << 16  # draws of 64 bits; four weights each, so that a chunk stays in the cache

U16 = npt.NDArray[np.uint16]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@lru_cache(maxsize=64)
def table(centre: float, deviation: float) -> U16:
    """The bf16 bits of the 65,536 values: a bell with thin tails, out to 3.4 deviations."""
    x = (np.arange(65536, dtype=np.float64) - 32767.5) / 32768.0
    x2 = x * x
    x4 = x2 * x2
    bell = x + 3.0 * (x4 * x4 * x)
    # NOTE: the variance of x + 3 x^9 over [-1, 1] is 1/3 + 6/11 + 9/19.
    unit = math.sqrt(1.0 / 3.0 + 6.0 / 11.0 + 9.0 / 19.0)
    values = centre + bell * (deviation / unit)
    return bf16_bits(values.astype(np.float32))


def bf16_bits(values: npt.NDArray[np.float32]) -> U16:
    """The bf16 bits of finite values, rounded to nearest even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return ((bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)).astype(np.uint16)


def bf16_values(bits: U16) -> F64:
    """The numbers that bf16 bits stand for."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def draw(seed: int, name: str, count: int, values: U16) -> U16:
    """`count` entries of the table, by the stream of (seed, name); weight i takes draw i // 4."""
    key = _key(seed, name)
    out = np.empty(count, dtype=np.uint16)
    step = 4 * CHUNK_DRAWS
    starts = range(0, count, step)

    def fill(start: int) -> None:
        chunk = out[start : start + step]
        words = _words(key, start // 4, -(-len(chunk) // 4))
        indices = words.astype("<u8", copy=False).view("<u2")[: len(chunk)]
        # mode: the indices can't be out of range, and "raise" would buffer the output
        np.take(values, indices, out=chunk, mode="clip")

    if len(starts) == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            list(threads.map(fill, starts))
    return out


def uniform(seed: int, name: str, count: int) -> F64:
    """`count` numbers in [0, 1), multiples of 2^-53, by the stream of (seed, name)."""
    words = _words(_key(seed, name), 0, count)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def order(seed: int, name: str, count: int) -> I64:
    """The numbers below `count`, shuffled: sorted by the stream of (seed, name)."""
    return np.argsort(_words(_key(seed, name), 0, count), kind="stable")


def _key(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}\0{name}".encode()).digest()[:8], "little")


def _words(key: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """SplitMix64's outputs first .. first + count of the stream that starts at `key`."""
    z = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    z *= GAMMA
    z += np.uint64(key)
    t = z >> np.uint64(30)
    z ^= t
    z *= MIX_A
    np.right_shift(z, np.uint64(27), out=t)
    z ^= t
    z *= MIX_B
    np.right_shift(z, np.uint64(31), out=t)
    z ^= t
    return z
