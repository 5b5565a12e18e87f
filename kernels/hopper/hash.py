"""A position-keyed 128-bit hash of raw bytes on the device, the integers of the CPU set's hash.py.

The bytes are 64-bit little-endian words w_0, w_1, ..., the last filled up with zeros. With mixing
m (two multiplications by odd constants between shifts) and all sums modulo 2^64:

    low = sum of m(w_i + (i + 1) G1 + key), high = sum of m(w_i + (i + 1) G2 + (key >> 64))

and both are mixed once more with the number of bytes. Sums of integers have no order, so programs
add their parts in any. Not cryptographic.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from .check import DEVICE, bf16, matrix
from .jit import device, kernel
from .launch import bind
from .overlap import enter

__all__ = ["hash128", "hash128_rows", "hash128_spans"]

G1, G2 = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
M1, M2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
WORD = (1 << 64) - 1
BLOCK, PER_PROGRAM = 512, 8
"""Words of a block, and blocks of a program."""


@device
def _mix(x, m1, m2):
    x = x ^ (x >> 32)
    x = x * m1
    x = x ^ (x >> 29)
    x = x * m2
    return x ^ (x >> 32)


@device
def _words(address, size, i):
    """Words i of the span as uint64; bytes past its end are zeros."""
    if address % 8 == 0:
        start = address.to(tl.pointer_type(tl.uint64), bitcast=True)
        words = tl.load(start + i, mask=8 * i + 8 <= size, other=0)
    else:
        words = tl.zeros(i.shape, tl.uint64)
    start = address.to(tl.pointer_type(tl.uint8), bitcast=True)
    single = (8 * i < size) & ((address % 8 != 0) | (8 * i + 8 > size))
    for byte in tl.static_range(8):
        at = 8 * i + byte
        value = tl.load(start + at, mask=single & (at < size), other=0).to(tl.uint64)
        words = words | (value << (8 * byte))
    return words


@kernel
def _add_spans(spans, sums, constants, count, BLOCK: tl.constexpr, PER_PROGRAM: tl.constexpr):
    """spans: int64 [4, count]: address, bytes, index of the first word, row of sums."""
    enter()
    span = tl.program_id(0)
    address, size = tl.load(spans + span), tl.load(spans + count + span)
    first, target = tl.load(spans + 2 * count + span), tl.load(spans + 3 * count + span)
    g1, g2 = tl.load(constants), tl.load(constants + 1)
    m1, m2 = tl.load(constants + 2), tl.load(constants + 3)
    key_low, key_high = tl.load(constants + 4), tl.load(constants + 5)
    low = tl.zeros((BLOCK,), tl.uint64)
    high = tl.zeros((BLOCK,), tl.uint64)
    start = tl.program_id(1).to(tl.int64) * BLOCK * PER_PROGRAM
    words = (size + 7) // 8
    for block in range(PER_PROGRAM):
        i = start + block * BLOCK + tl.arange(0, BLOCK)
        if start + block * BLOCK < words:
            word = _words(address, size, i)
            at = (first + i + 1).to(tl.uint64)
            here = i < words
            low += tl.where(here, _mix(word + at * g1 + key_low, m1, m2), 0).to(tl.uint64)
            high += tl.where(here, _mix(word + at * g2 + key_high, m1, m2), 0).to(tl.uint64)
    if start < words:
        tl.atomic_add(sums + 2 * target, tl.sum(low), sem="relaxed")
        tl.atomic_add(sums + 2 * target + 1, tl.sum(high), sem="relaxed")


def hash128(data: torch.Tensor, key: int = 0) -> int:
    """The hash of the bytes of a contiguous tensor, as an integer below 2^128.

    Raises:
        ValueError: the data is not contiguous, or not in the device's memory.
    """
    if data.device.type != DEVICE or not data.is_contiguous():
        raise ValueError(f"data must be a contiguous tensor on {DEVICE}")
    found = hash128_spans(
        addresses=np.array([data.data_ptr()]), sizes=np.array([data.nbytes]), key=key
    )
    return int(found[0, 1]) << 64 | int(found[0, 0])


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
    blocks = block_table.cpu().numpy().astype(np.int64)
    token = np.arange(count)
    rows = np.full(count, -1)
    if -(-count // block_size) <= len(blocks):
        rows = blocks[token // block_size] * block_size + token % block_size
    if ((rows < 0) | (rows >= pool_rows)).any():
        raise ValueError(
            f"{count} tokens in blocks of {block_size}: one lies outside the table of "
            f"{len(blocks)} blocks or the pool of {pool_rows} rows"
        )
    size = 2 * dim
    words = -(-size // 8)
    start = bf16("pool", pool, (pool_rows, dim)).data_ptr()
    spans = np.stack([start + rows * size, np.full(count, size), token * words, 0 * token])
    low, high = _finished(_sums(spans, 1, key), np.array([8 * count * words]))[0].tolist()
    return high << 64 | low


def hash128_spans(*, addresses: Any, sizes: Any, key: int = 0) -> Any:
    """`hash128` of each span of bytes, uint64 [spans, 2]: the low half, then the high one.

    addresses, of the device's memory, and sizes in bytes: NumPy integers [spans]. Nothing is known
    of the memory behind an address: it must be the caller's for as many bytes.

    Raises:
        ValueError: the arrays have another form, or a size is negative.
    """
    count = len(sizes)
    for name, array in (("addresses", addresses), ("sizes", sizes)):
        if array.shape != (count,) or array.itemsize != 8 or array.dtype.kind not in "iu":
            raise ValueError(
                f"{name} is {array.dtype} {array.shape}: it must be an array of {count} 64-bit "
                "integers"
            )
    if count and sizes.min() < 0:
        raise ValueError(f"sizes has {sizes.min()}: a span has 0 bytes or more")
    index = np.arange(count)
    spans = np.stack([addresses.astype(np.int64), sizes.astype(np.int64), 0 * index, index])
    return _finished(_sums(spans, count, key), sizes)


def _sums(spans: Any, count: int, key: int) -> Any:
    """uint64 [count, 2]: the two sums of each target, of spans int64 [4, spans]."""
    if spans.shape[1] == 0:
        return np.zeros((count, 2), dtype=np.uint64)
    numbers = [G1, G2, M1, M2, key & WORD, key >> 64 & WORD]
    constants = np.array(numbers, dtype=np.uint64).view(np.int64)
    whole = np.concatenate((constants, spans.ravel(), np.zeros(2 * count, dtype=np.int64)))
    programs = triton.cdiv(max(int(spans[1].max()), 1), 8 * BLOCK * PER_PROGRAM)
    launch, there = _bound(spans.shape[1], programs, count)
    there.copy_(torch.from_numpy(whole))
    launch()
    return there[len(whole) - 2 * count :].cpu().numpy().view(np.uint64).reshape(count, 2)


@lru_cache(maxsize=32)
def _bound(spans: int, programs: int, count: int) -> tuple[Any, torch.Tensor]:
    """The launch for so many spans, and what it reads and adds to: constants, spans, sums.

    Kept, since a run hashes the same number of spans step after step.
    """
    there = torch.empty(6 + 4 * spans + 2 * count, dtype=torch.int64, device=DEVICE)
    sums, constants = there[6 + 4 * spans :], there[:6].view(torch.uint64)
    arguments = (there[6:], sums.view(torch.uint64), constants, spans, BLOCK, PER_PROGRAM)
    return bind(_add_spans, (spans, programs), arguments), there


def _mixed(x: Any) -> Any:
    """`_mix` on the host, of uint64 arrays."""
    x = x ^ x >> np.uint64(32)
    x = x * np.uint64(M1)
    x = x ^ x >> np.uint64(29)
    x = x * np.uint64(M2)
    return x ^ x >> np.uint64(32)


def _finished(sums: Any, sizes: Any) -> Any:
    """Both sums mixed with the number of bytes, and the high one with the low one."""
    size = np.asarray(sizes).astype(np.uint64)
    low = _mixed(sums[:, 0] + size * np.uint64(G2))
    return np.stack((low, _mixed((sums[:, 1] ^ low) + size * np.uint64(G1))), axis=1)
