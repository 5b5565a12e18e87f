"""What a wrapper asks of its tensors before it binds their addresses: a wrong one would crash."""

from __future__ import annotations

import torch
import triton

__all__ = ["DEVICE", "bf16", "disjoint", "f32", "i32", "matrix", "optional_vector"]

DEVICE = "cpu" if triton.knobs.runtime.interpret else "cuda"
"""Where tensors must lie; Triton's interpreter runs on the CPU."""


def bf16(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it is contiguous bf16 of this shape."""
    return _checked(name, tensor, torch.bfloat16, shape)


def f32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it is contiguous float32 of this shape."""
    return _checked(name, tensor, torch.float32, shape)


def i32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The tensor, if it is contiguous int32 of this shape."""
    return _checked(name, tensor, torch.int32, shape)


def optional_vector(
    name: str, tensor: torch.Tensor | None, dim: int, instead: torch.Tensor
) -> torch.Tensor:
    """A bf16 vector; for None the tensor `instead`, which the kernel is told not to read."""
    return instead if tensor is None else bf16(name, tensor, (dim,))


def matrix(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    """Rows and columns of a two-dimensional tensor."""
    if tensor.dim() != 2:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: it must be [rows, dim]")
    rows, dim = tensor.shape
    return rows, dim


def disjoint(outputs: dict[str, torch.Tensor], inputs: dict[str, torch.Tensor | None]) -> None:
    """Refuses an output that shares memory with an input, or with another output."""
    spans = []
    for name, tensor in inputs.items():
        if tensor is not None and tensor.nbytes:
            start = tensor.data_ptr()
            spans.append((start, start + tensor.nbytes, name))
    for name, tensor in outputs.items():
        if not tensor.nbytes:
            continue
        start = tensor.data_ptr()
        stop = start + tensor.nbytes
        for other_start, other_stop, other in spans:
            if start < other_stop and other_start < stop:
                raise ValueError(f"{name} overlaps {other}: give it memory of its own")
        spans.append((start, stop, name))


def _checked(
    name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]
) -> torch.Tensor:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
        have = f"{tensor.dtype} {tuple(tensor.shape)}"
        if not tensor.is_contiguous():
            have += f" with strides {tuple(tensor.stride())}"
        raise ValueError(f"{name} is {have}: it must be contiguous {dtype} {shape}")
    if tensor.device.type != DEVICE:
        raise ValueError(f"{name} is on {tensor.device}: this kernel set runs on {DEVICE}")
    return tensor
