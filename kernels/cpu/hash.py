"""A position-keyed 128-bit hash of raw bytes, the same as its twin in naive/hash.py.

The bytes are 64-bit little-endian words w_0, w_1, ..., the last filled up with zeros. With mixing
m (two multiplications by odd constants between shifts) and all sums modulo 2^64:

    low = sum of m(w_i + (i + 1) G1 + key), high = sum of m(w_i + (i + 1) G2 + (key >> 64))

and both are mixed once more with the number of bytes. Sums of integers have no order, so any split
over lanes or threads gives the same digest; the word's index is in it, so permuted rows differ.
Not cryptographic.
"""

from __future__ import annotations

import numpy as np
import torch

from .check import bf16, i32, matrix
from .jit import device, kernel
from .kv import pool_row
from .launch import bind
from .memory import load_i64, load_u8, load_u64, store_i64

__all__ = ["hash128", "hash128_rows", "hash128_spans"]

G1 = np.uint64(0x9E3779B97F4A7C15)
G2 = np.uint64(0xD1342543DE82EF95)
M1 = np.uint64(0xFF51AFD7ED558CCD)
M2 = np.uint64(0xC4CEB9FE1A85EC53)
ONE, EIGHT, S29, S32, ZERO = (np.uint64(value) for value in (1, 8, 29, 32, 0))
WORD = (1 << 64) - 1


@device
def mix(x):
    """An invertible mixing of 64 bits."""
    x ^= x >> S32
    x *= M1
    x ^= x >> S29
    x *= M2
    return x ^ (x >> S32)


@device
def add_words(address, size, first, keys, sums):
    """The two sums with `size` bytes at `address` added, as words `first`, `first` + 1, ..."""
    low, high = sums
    key_low, key_high = keys
    whole = size // 8
    for i in range(whole):
        word = load_u64(address, i)
        at = np.uint64(first + i) + ONE
        low += mix(word + at * G1 + key_low)
        high += mix(word + at * G2 + key_high)
    if size % 8 != 0:
        word = ZERO
        for byte in range(size % 8):
            word |= load_u8(address, 8 * whole + byte) << (EIGHT * np.uint64(byte))
        at = np.uint64(first + whole) + ONE
        low += mix(word + at * G1 + key_low)
        high += mix(word + at * G2 + key_high)
    return low, high


@device
def finish(sums, size):
    """Both sums mixed with the number of bytes, and the high one with the low one."""
    low = mix(sums[0] + np.uint64(size) * G2)
    return low, mix((sums[1] ^ low) + np.uint64(size) * G1)


@device
def _hash_bytes(address, size, key_low, key_high):
    return finish(add_words(address, size, 0, (key_low, key_high), (ZERO, ZERO)), size)


@device
def _hash_rows(pool, table, columns, block_size, pool_rows, count, row_bytes, key_low, key_high):
    words = (row_bytes + 7) // 8
    sums = (ZERO, ZERO)
    for token in range(count):
        row = pool_row(table, token, columns, block_size, pool_rows)
        if row < 0:
            return False, sums
        sums = add_words(
            pool + row * row_bytes, row_bytes, token * words, (key_low, key_high), sums
        )
    return True, finish(sums, 8 * count * words)


@kernel
def _hash_spans(arguments, chunk, chunks):
    """A chunk has the spans whose middle lies in its share of all bytes."""
    addresses = load_i64(arguments, 0)
    sizes = load_i64(arguments, 1)
    hashes = load_i64(arguments, 2)
    count = load_i64(arguments, 3)
    total = load_i64(arguments, 4)
    key_low = load_u64(arguments, 5)
    key_high = load_u64(arguments, 6)
    before = 0
    for span in range(count):
        size = load_i64(sizes, span)
        share = min((before + size // 2) * chunks // max(total, 1), chunks - 1)
        before += size
        if share == chunk:
            low, high = _hash_bytes(load_i64(addresses, span), size, key_low, key_high)
            store_i64(hashes, 2 * span, np.int64(low))
            store_i64(hashes, 2 * span + 1, np.int64(high))


@device
def _places(addresses, sizes, hashes):
    """Where the three arrays lie, and the sum of all sizes: -1 where one is negative.

    In one call, since NumPy takes a microsecond for each address.
    """
    total = 0
    for span in range(len(sizes)):
        if sizes[span] < 0:
            total = -1
            break
        total += sizes[span]
    return addresses.ctypes.data, sizes.ctypes.data, hashes.ctypes.data, total


def hash128(data: torch.Tensor | np.ndarray, key: int = 0) -> int:
    """The hash of the bytes of a contiguous tensor or array, as an integer below 2^128.

    Raises:
        ValueError: the data is not contiguous, or not in this machine's memory.
    """
    address, size = _bytes_of(data)
    return _joined(_hash_bytes(address, size, *_keys(key)))


def hash128_rows(
    *, pool: torch.Tensor, block_table: torch.Tensor, count: int, block_size: int, key: int = 0
) -> int:
    """The hash of the pool rows of tokens 0..count-1 of one sequence, in the tokens' order.

    pool: bf16 [pool rows, dim]; block_table: i32 [blocks], the sequence's own. Equal to `hash128`
    of the gathered rows, each filled up with zeros to whole words: which blocks hold them does
    not matter.

    Raises:
        ValueError: a token lies outside the table or the pool, or a tensor has another form.
    """
    pool_rows, dim = matrix("pool", pool)
    columns = block_table.shape[0]
    inside, sums = _hash_rows(
        bf16("pool", pool, (pool_rows, dim)),
        i32("block_table", block_table, (columns,)),
        columns,
        block_size,
        pool_rows,
        count,
        2 * dim,
        *_keys(key),
    )
    if not inside:
        raise ValueError(
            f"{count} tokens in blocks of {block_size}: one lies outside the table of {columns} "
            f"blocks or the pool of {pool_rows} rows"
        )
    return _joined(sums)


def hash128_spans(*, addresses: np.ndarray, sizes: np.ndarray, key: int = 0) -> np.ndarray:
    """`hash128` of each span of bytes, uint64 [spans, 2]: the low half, then the high one.

    addresses: int64 or uint64 [spans]; sizes: int64 [spans], in bytes. Nothing is known of the
    memory behind an address: it must be the caller's for as many bytes.

    Raises:
        ValueError: the arrays have another form, or a size is negative.
    """
    count = len(sizes)
    for name, array, kinds in (("addresses", addresses, "iu"), ("sizes", sizes, "i")):
        is_flat = array.shape == (count,) and array.flags.c_contiguous
        if not is_flat or array.itemsize != 8 or array.dtype.kind not in kinds:
            raise ValueError(
                f"{name} is {array.dtype} {array.shape}: it must be a contiguous array of {count} "
                f"64-bit integers"
            )
    hashes = np.empty((count, 2), dtype=np.uint64)
    *where, total = _places(addresses, sizes, hashes)
    if total < 0:
        raise ValueError(f"sizes has {sizes.min()}: a span has 0 bytes or more")
    halves = (_signed(key & WORD), _signed(key >> 64 & WORD))
    bind(_hash_spans, (*where, count, total, *halves), (), data_bytes=total)()
    return hashes


def _signed(word: int) -> int:
    """A word's bits as a signed integer."""
    return word - (1 << 64) if word >> 63 else word


def _bytes_of(data: torch.Tensor | np.ndarray) -> tuple[int, int]:
    if isinstance(data, torch.Tensor):
        if data.device.type != "cpu" or not data.is_contiguous():
            raise ValueError("data must be a contiguous tensor on the CPU")
        return data.data_ptr(), data.nbytes
    if not data.flags.c_contiguous:
        raise ValueError("data must be a contiguous array")
    return data.ctypes.data, data.nbytes


def _keys(key: int) -> tuple[np.uint64, np.uint64]:
    return np.uint64(key & WORD), np.uint64(key >> 64 & WORD)


def _joined(sums: tuple[int, int]) -> int:
    return int(sums[1]) << 64 | int(sums[0])
