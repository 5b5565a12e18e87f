"""The byte comparison equals a naive loop over bytes, and forgives nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metpipe.diff.bytewise import NothingComparedError, compare_bytes


def naive(ours: bytes, theirs: bytes) -> tuple[int, int | None]:
    count, first = 0, None
    for i in range(max(len(ours), len(theirs))):
        if ours[i : i + 1] != theirs[i : i + 1]:
            count += 1
            first = i if first is None else first
    return count, first


# Few byte values, so that equal strings and long equal runs occur.
short_bytes = st.binary(max_size=40).map(lambda data: bytes(byte % 3 for byte in data))


@given(ours=short_bytes, theirs=short_bytes)
def test_byte_strings_agree_with_the_loop(ours: bytes, theirs: bytes) -> None:
    if not ours and not theirs:
        return
    found = compare_bytes(ours, theirs)
    assert (found.unequal, found.first) == naive(ours, theirs)
    assert bool(found) == (ours == theirs)


@st.composite
def two_tensors(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 9))
    bits = st.lists(
        st.sampled_from([0, -32768, 0x7FC0, 0x7F80, 1]),
        min_size=rows * columns,
        max_size=rows * columns,
    )
    ours = torch.tensor(draw(bits), dtype=torch.int16).view(rows, columns)
    theirs = ours.clone()
    for place in draw(st.lists(st.integers(0, rows * columns - 1), max_size=3)):
        theirs.view(-1)[place] ^= draw(st.sampled_from([1, 0x80, 0x100, 0x4000]))
    return ours.view(torch.bfloat16), theirs.view(torch.bfloat16)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.int16).numpy().tobytes()


@given(pair=two_tensors())
def test_tensors_agree_with_the_loop(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    ours, theirs = pair
    found = compare_bytes(ours, theirs)
    assert (found.unequal, found.first) == naive(raw(ours), raw(theirs))
    unequal_rows = [i for i in range(len(ours)) if raw(ours[i]) != raw(theirs[i])]
    assert found.rows == tuple(unequal_rows)
    assert found.num_rows == len(ours)
    assert found.note is None


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
@pytest.mark.parametrize("columns", [8, 7, 6])
def test_alignment_of_either_side_does_not_matter(shift: int, columns: int) -> None:
    ours = torch.arange(columns + 4).to(torch.bfloat16)[shift : shift + columns]
    theirs = ours.clone()
    assert compare_bytes(ours, theirs)
    assert compare_bytes(theirs, ours)
    theirs[-1] += 1
    assert not compare_bytes(ours, theirs)


def test_strided_views_are_compared_by_value_order() -> None:
    tensor = torch.arange(12.0).view(3, 4)
    assert compare_bytes(tensor.t(), tensor.t().clone(memory_format=torch.contiguous_format))


def test_read_only_and_mapped_arrays_are_compared(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(10, dtype=np.uint16))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    assert compare_bytes(mapped, np.arange(10, dtype=np.uint16))
    assert compare_bytes(mapped, np.arange(11, dtype=np.uint16)).first == 20


def test_zero_dimensional_and_requiring_grad() -> None:
    assert compare_bytes(torch.tensor(1.0, requires_grad=True), torch.tensor(1.0))
    assert compare_bytes(torch.tensor(1.0), torch.tensor(2.0)).rows == (0,)


def test_equal_nan_bytes_are_equal_and_signed_zeros_are_not() -> None:
    nan = torch.tensor([float("nan")] * 4, dtype=torch.bfloat16)
    assert compare_bytes(nan, nan.clone())
    zero = torch.zeros(4, dtype=torch.bfloat16)
    assert compare_bytes(zero, -zero).unequal == 4


def test_another_dtype_differs_with_equal_values_and_with_equal_bytes() -> None:
    values = torch.zeros(4, dtype=torch.bfloat16)
    for run in (values.float(), values.clone().view(torch.float16)):
        found = compare_bytes(values, run)
        assert not found
        assert found.rows == (0,)
        assert found.note is not None
        assert "the reference's is bfloat16" in found.note
    assert found.unequal == 0
    assert found.first is None


def test_another_shape_differs_with_equal_bytes() -> None:
    values = torch.ones(4, 2)
    found = compare_bytes(values, torch.ones(2, 4))
    assert not found
    assert found.rows == (0, 1, 2, 3)
    assert found.note == "shape is [2, 4], the reference's is [4, 2]"


def test_a_missing_row_counts_its_bytes() -> None:
    found = compare_bytes(torch.ones(3, 2), torch.ones(2, 2))
    assert (found.unequal, found.first) == (8, 16)
    assert compare_bytes(torch.ones(0, 2), torch.ones(2, 2)).unequal == 16


def test_comparing_nothing_is_refused() -> None:
    with pytest.raises(NothingComparedError, match="empty"):
        compare_bytes(b"", b"")
    with pytest.raises(NothingComparedError, match="empty"):
        compare_bytes(torch.zeros(0, 5), torch.zeros(0, 5))
    buffer = torch.ones(3)
    with pytest.raises(NothingComparedError, match="same memory"):
        compare_bytes(buffer, buffer)
    with pytest.raises(NothingComparedError, match="same memory"):
        compare_bytes(buffer, buffer.numpy())
