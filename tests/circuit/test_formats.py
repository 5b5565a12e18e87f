"""Byte laws of formats."""

from __future__ import annotations

import pytest

from metpipe.circuit import element_bytes, parse_format, tensor_bytes, weight_bytes
from metpipe.errors import ConfigError


@pytest.mark.parametrize(
    ("spelling", "rows", "dim", "expected"),
    [
        ("bf16", 3, 5, 30),
        ("f32", 3, 5, 60),
        ("i32", 3, 1, 12),
        ("fp8/tensor", 4, 256, 1024 + 4),
        ("fp8/token", 4, 256, 1024 + 16),
        ("fp8/channel", 4, 256, 1024 + 1024),
        ("fp8/g128", 4, 256, 1024 + 4 * 4 * 2),
        ("fp8/block128x128", 130, 300, 39000 + 4 * 2 * 3),
        ("mxfp4/g32", 4, 256, 512 + 32),
        ("nvfp4/g16", 4, 256, 512 + 64 + 16),
    ],
)
def test_a_tensor_with_its_scales(spelling: str, rows: int, dim: int, expected: int) -> None:
    assert tensor_bytes(spelling, rows, dim) == expected


def test_an_nvfp4_weight_has_one_global_scale() -> None:
    assert weight_bytes("nvfp4/g16", 64, 256) == 64 * 256 * 9 // 16 + 4
    assert tensor_bytes("nvfp4/g16", 64, 256) == 64 * 256 * 9 // 16 + 4 * 64


@pytest.mark.parametrize("spelling", ["bf16", "fp8/tensor", "fp8/block128x128", "mxfp4/g32"])
def test_other_weights_are_as_large_as_tensors(spelling: str) -> None:
    assert weight_bytes(spelling, 256, 512) == tensor_bytes(spelling, 256, 512)


def test_the_channel_law_of_a_published_report() -> None:
    """48 projections of 16384 x 5120 in fp8/channel: 3840.9 MiB, scales by input width."""
    total = 48 * weight_bytes("fp8/channel", 16384, 5120)
    assert total == 48 * (16384 * 5120 + 4 * 5120)
    assert round(total / 2**20, 1) == 3840.9


@pytest.mark.parametrize(
    ("spelling", "rows", "dim"),
    [("fp8/g128", 1, 100), ("nvfp4/g16", 1, 24), ("mxfp4/g32", 1, 48), ("nvfp4/g1", 1, 3)],
)
def test_a_width_off_the_groups_is_an_error(spelling: str, rows: int, dim: int) -> None:
    with pytest.raises(ConfigError):
        tensor_bytes(spelling, rows, dim)


@pytest.mark.parametrize(
    "spelling", ["fp16", "BF16", "fp8", "fp8/g0", "fp8/row", "mxfp4/g16", "nvfp4", "fp8/block128"]
)
def test_only_canonical_spellings(spelling: str) -> None:
    with pytest.raises(ConfigError, match="no format is spelled"):
        parse_format(spelling)


@pytest.mark.parametrize(
    ("spelling", "quantised", "weight_only"),
    [
        ("bf16", False, False),
        ("fp8/token", True, False),
        ("fp8/channel", True, True),
        ("fp8/block128x128", True, True),
        ("nvfp4/g16", True, False),
        ("mxfp4/g32", True, True),
    ],
)
def test_kinds_of_formats(spelling: str, quantised: bool, weight_only: bool) -> None:
    found = parse_format(spelling)
    assert (found.is_quantised, found.is_weight_only) == (quantised, weight_only)


def test_state_elements() -> None:
    sizes = {dtype: element_bytes(dtype) for dtype in ("f32", "f16", "bf16", "fp8", "u8", "u64")}
    assert sizes == {"f32": 4, "f16": 2, "bf16": 2, "fp8": 1, "u8": 1, "u64": 8}
    with pytest.raises(ConfigError, match="'nvfp4'"):
        element_bytes("nvfp4")
