"""The ledger counts exact bytes per tag, and only what lives."""

from __future__ import annotations

import pytest
import torch

from metpipe.engine.allocator import Allocator


def test_bytes_are_counted_by_tag_and_owner():
    allocator = Allocator(torch.device("cpu"))
    allocator.take("weights", "a", (3, 5), torch.bfloat16)
    allocator.take("weights", "b", (7,), torch.bfloat16)
    arena = allocator.take("arena", "circuit", (1000,), torch.uint8)
    assert allocator.bytes_by_tag() == {"weights": 44, "arena": 1000}
    assert allocator.bytes_by_tag("circuit") == {"arena": 1000}
    allocator.free(arena)
    assert allocator.bytes_by_tag() == {"weights": 44}
    assert [item.owner for item in allocator.ledger()] == ["a", "b"]


def test_an_unknown_tag_is_refused():
    with pytest.raises(ValueError, match="'misc' is not one of"):
        Allocator(torch.device("cpu")).take("misc", "x", (1,), torch.uint8)


def test_freeing_a_stranger_is_refused():
    with pytest.raises(ValueError, match="did not hand out"):
        Allocator(torch.device("cpu")).free(torch.empty(3))
