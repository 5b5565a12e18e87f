"""A byte written beside a buffer is counted, on either side and up to a row away."""

from __future__ import annotations

import pytest
import torch

from metpipe.engine.microtest.guarded import FILL_BITS, Guarded, count_unequal, fill, is_fill

CPU = torch.device("cpu")


def around(buffer: Guarded, offset: int) -> torch.Tensor:
    """A view of the row that lies `offset` elements from the buffer's start."""
    tensor = buffer.tensor
    return tensor.as_strided((tensor.shape[-1],), (1,), tensor.storage_offset() + offset)


@pytest.mark.parametrize("shape", [(1, 1), (3, 71), (17, 1536), (24,)])
def test_a_buffer_is_aligned_as_an_arena_and_has_its_guards(shape):
    buffer = Guarded.allocate(shape, torch.bfloat16, CPU)
    assert buffer.tensor.shape == shape
    assert buffer.tensor.is_contiguous()
    assert buffer.tensor.data_ptr() % 256 == 0
    buffer.tensor.fill_(3.0)
    assert buffer.trespass() == 0


def test_a_row_too_many_is_counted_and_can_be_put_back():
    buffer = Guarded.allocate((3, 1536), torch.bfloat16, CPU)
    around(buffer, 3 * 1536).fill_(1.0)
    assert buffer.trespass() > 3000
    buffer.restore()
    assert buffer.trespass() == 0


def test_one_element_before_the_start_is_counted():
    buffer = Guarded.allocate((2, 8), torch.bfloat16, CPU)
    around(buffer, -8)[-1] = -7.0
    assert 1 <= buffer.trespass() <= 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int32, torch.float32])
def test_what_was_not_written_stays_marked(dtype):
    tensor = torch.empty(2, 3, dtype=dtype)
    fill(tensor)
    assert bool(is_fill(tensor).all())
    tensor[1] = 1
    words = dtype.itemsize // 2
    assert is_fill(tensor).tolist() == [True] * 3 * words + [False] * 3 * words


def test_the_mark_is_a_nan_that_no_kernel_writes():
    mark = torch.tensor([FILL_BITS], dtype=torch.int16)
    assert bool(mark.view(torch.bfloat16).isnan().all())
    assert FILL_BITS & 0xFFFF != 0x7FC0


def test_bytes_are_compared_and_not_values():
    zero, nan = torch.zeros(4), torch.full((4,), torch.nan)
    assert count_unequal(zero, -zero) == 4
    assert count_unequal(nan, nan.clone()) == 0
