"""Twin of the hash, in NumPy."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch

__all__ = ["hash128", "hash128_rows", "hash128_spans"]

G1 = np.uint64(0x9E3779B97F4A7C15)
G2 = np.uint64(0xD1342543DE82EF95)
M1 = np.uint64(0xFF51AFD7ED558CCD)
M2 = np.uint64(0xC4CEB9FE1A85EC53)
WORD = (1 << 64) - 1


def _mix(x: np.ndarray) -> np.ndarray:
    x = (x ^ (x >> np.uint64(32))) * M1
    x = (x ^ (x >> np.uint64(29))) * M2
    return x ^ (x >> np.uint64(32))


def hash128(data: torch.Tensor | np.ndarray, key: int = 0) -> int:
    """The hash of the data's bytes, as an integer below 2^128."""
    if isinstance(data, torch.Tensor):
        data = data.contiguous().reshape(-1).view(torch.uint8).numpy()
    raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    words = np.pad(raw, (0, -len(raw) % 8)).view(np.uint64)
    at = np.arange(1, len(words) + 1, dtype=np.uint64)
    low = _mix(words + at * G1 + np.uint64(key & WORD)).sum(dtype=np.uint64)
    high = _mix(words + at * G2 + np.uint64(key >> 64 & WORD)).sum(dtype=np.uint64)
    size = np.array([len(raw)], dtype=np.uint64)
    low = _mix(size * G2 + low)
    high = _mix(size * G1 + (high ^ low))
    return int(high[0]) << 64 | int(low[0])


def hash128_rows(
    *, pool: torch.Tensor, block_table: torch.Tensor, count: int, block_size: int, key: int = 0
) -> int:
    """The hash of the gathered rows, each filled up with zeros to whole words."""
    tokens = torch.arange(count)
    rows = pool[block_table.long()[tokens // block_size] * block_size + tokens % block_size]
    raw = rows.contiguous().view(torch.uint8).numpy()
    return hash128(np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))), key)


def _memory(address: int, size: int) -> np.ndarray:
    described = {"data": (address, True), "shape": (size,), "typestr": "|u1", "version": 3}
    return np.asarray(SimpleNamespace(__array_interface__=described))


def hash128_spans(*, addresses: np.ndarray, sizes: np.ndarray, key: int = 0) -> np.ndarray:
    """The hash of each span of memory: uint64 [spans, 2], the low half, then the high one."""
    spans = zip(addresses.tolist(), sizes.tolist(), strict=True)
    hashes = [hash128(_memory(address, size), key) for address, size in spans]
    halves = [(value & WORD, value >> 64) for value in hashes]
    return np.array(halves, dtype=np.uint64).reshape(-1, 2)
