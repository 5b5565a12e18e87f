"""The state hash: its twin's value, and another one for another byte, place or length."""

from __future__ import annotations

import numba
import numpy as np
import pytest
import torch

from tests.kernels.cpu.values import make

SIZES = (0, 1, 7, 8, 9, 63, 64, 65, 1000, 4097)


def raw(size, seed=0):
    return torch.randint(
        0, 256, (size,), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8
    )


@pytest.mark.parametrize("size", SIZES)
def test_hash_is_the_twin(cpu, module, size):
    twin = module("naive.hash").hash128
    for key in (0, 1, 2**64, 2**127 + 5):
        value = cpu.functions["hash.hash128"](raw(size), key)
        assert value == twin(raw(size), key)
        assert 0 <= value < 2**128


def test_the_hash_is_pinned(cpu):
    """Digests are kept between runs, so the function must not change unnoticed."""
    value = cpu.functions["hash.hash128"](torch.arange(20, dtype=torch.uint8))
    assert f"{value:032x}" == "f439f1be87e575dac0e3a5c9dd594273"


def test_every_bit_counts_and_spreads(cpu):
    hash128 = cpu.functions["hash.hash128"]
    data = raw(67)
    base = hash128(data)
    changed = []
    for byte in range(67):
        for bit in range(8):
            data[byte] ^= 1 << bit
            changed.append(hash128(data) ^ base)
            data[byte] ^= 1 << bit
    assert len(set(changed)) == 67 * 8
    flipped = [bin(difference).count("1") for difference in changed]
    assert min(flipped) > 30
    assert 62 < np.mean(flipped) < 66


def test_length_counts_where_the_words_are_equal(cpu):
    hash128 = cpu.functions["hash.hash128"]
    zeros = torch.zeros(24, dtype=torch.uint8)
    assert len({hash128(zeros[:size]) for size in range(25)}) == 25


def test_permuted_rows_differ(cpu):
    hash128 = cpu.functions["hash.hash128"]
    rows = raw(64 * 8).view(8, 64)
    swapped = rows[[1, 0, 2, 3, 4, 5, 6, 7]].contiguous()
    assert hash128(rows) != hash128(swapped)
    assert hash128(rows) == hash128(rows.numpy())


def test_sums_that_would_meet_in_one_half_differ_in_the_other(cpu, module):
    """A pair of words made to give word 0's term at word 1, in the low half: the high one tells."""
    hash128 = cpu.functions["hash.hash128"]
    step = int(module("hash").G1)
    w0, w1 = 123456789, 987654321
    a = np.array([w0, w1], dtype=np.uint64)
    b = np.array([(w1 + step) % 2**64, (w0 - step) % 2**64], dtype=np.uint64)
    x, y = hash128(a), hash128(b)
    assert x % 2**64 == y % 2**64
    assert x != y


@pytest.mark.parametrize(("dim", "block_size"), ((64, 16), (67, 16), (30, 5), (1, 1)))
def test_rows_hash_by_position_not_by_block(cpu, module, dim, block_size):
    rows, gathered = cpu.functions["hash.hash128_rows"], make("any_bits", 1, 37, dim)
    values = set()
    for seed in range(3):
        blocks = torch.randperm(60, generator=torch.Generator().manual_seed(seed)).int()
        pool = make("any_bits", 2 + seed, 60 * block_size, dim)
        token = torch.arange(37)
        at = blocks[token // block_size] * block_size + token % block_size
        pool[at.long()] = gathered
        values.add(rows(pool=pool, block_table=blocks, count=37, block_size=block_size, key=3))
        pool[at[36].long()] = 0
        moved = rows(pool=pool, block_table=blocks, count=37, block_size=block_size, key=3)
        kept = rows(pool=pool, block_table=blocks, count=36, block_size=block_size, key=3)
        twin = module("naive.hash").hash128_rows
        assert kept == twin(pool=pool, block_table=blocks, count=36, block_size=block_size, key=3)
        assert moved not in values
    assert len(values) == 1
    if 2 * dim % 8 == 0:
        assert values == {cpu.functions["hash.hash128"](gathered, 3)}


def test_a_row_outside_is_refused(cpu):
    pool, blocks = make("normal", 1, 32, 8), torch.tensor([0, 9], dtype=torch.int32)
    rows = cpu.functions["hash.hash128_rows"]
    for count in (17, 33):
        with pytest.raises(ValueError, match="lies outside"):
            rows(pool=pool, block_table=blocks, count=count, block_size=16)


def test_data_with_gaps_is_refused(cpu):
    with pytest.raises(ValueError, match="contiguous"):
        cpu.functions["hash.hash128"](torch.zeros(4, 4)[:, :2])
    with pytest.raises(ValueError, match="contiguous"):
        cpu.functions["hash.hash128"](np.zeros((4, 4))[:, :2])


def spans_of(data, sizes, seed=0):
    """Spans of these sizes that begin anywhere in data, at odd addresses too, and may overlap."""
    starts = np.random.default_rng(seed).integers(0, len(data) - np.array(sizes) + 1)
    return data.data_ptr() + starts, np.array(sizes, dtype=np.int64), starts


def joined(hashes):
    return [int(high) << 64 | int(low) for low, high in hashes]


@pytest.mark.parametrize("key", (0, 1, 2**64, 2**127 + 5, 2**128 - 1))
@pytest.mark.parametrize("threads", (1, 2))
def test_spans_hash_as_each_alone(cpu, module, key, threads):
    data = raw(3_000_000)
    kinds = {
        "none": [],
        "one": [8],
        "nothing": [0, 0, 0],
        "small": list(SIZES),
        "one large": [0, 3_000_000, 0],
        "many": [64, 1000, 65536 + 3, 0, 1_000_000] * 40 + [0],
    }
    numba.set_num_threads(threads)
    try:
        for kind, sizes in kinds.items():
            addresses, sizes, starts = spans_of(data, sizes)
            for typed in (addresses.astype(np.int64), addresses.astype(np.uint64)):
                given = {"addresses": typed, "sizes": sizes, "key": key}
                hashes = cpu.functions["hash.hash128_spans"](**given)
                assert hashes.dtype == np.uint64, kind
                assert hashes.shape == (len(sizes), 2), kind
                alone = [
                    cpu.functions["hash.hash128"](data[start : start + size].contiguous(), key)
                    for start, size in zip(starts, sizes, strict=True)
                ]
                assert joined(hashes) == alone, kind
            few = {"addresses": addresses[:9], "sizes": sizes[:9], "key": key}
            assert np.array_equal(module("naive.hash").hash128_spans(**few), hashes[:9]), kind
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)


def test_spans_of_another_form_are_refused(cpu):
    spans, good = cpu.functions["hash.hash128_spans"], np.zeros(4, dtype=np.int64)
    for name, wrong in (
        ("addresses", good[:3]),
        ("addresses", np.zeros(8, dtype=np.int64)[::2]),
        ("addresses", good.astype(np.float64)),
        ("sizes", good.astype(np.uint64)),
        ("sizes", good.astype(np.int32)),
        ("sizes", good.reshape(2, 2)),
    ):
        with pytest.raises(ValueError, match=r"is \w+ \(.*64-bit integers"):
            spans(**{"addresses": good, "sizes": good, name: wrong})
    with pytest.raises(ValueError, match="sizes has -1"):
        spans(addresses=good, sizes=np.array([0, 3, -1, 2]))
