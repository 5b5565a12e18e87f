"""What a wrapper asks of its tensors before it binds their addresses: a wrong one would crash."""

from __future__ import annotations

import torch

__all__ = ["bf16", "disjoint", "f32", "i32", "matrix", "optional_vector"]


def bf16(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> int:
    """The address of a contiguous bf16 tensor of this shape."""
    return _address(name, tensor, torch.bfloat16, shape)


def f32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> int:
    """The address of a contiguous float32 tensor of this shape."""
    return _address(name, tensor, torch.float32, shape)


def i32(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> int:
    """The address of a contiguous int32 tensor of this shape."""
    return _address(name, tensor, torch.int32, shape)


def optional_vector(name: str, tensor: torch.Tensor | None, dim: int) -> int:
    """The address of a bf16 vector, 0 for None."""
    return 0 if tensor is None else bf16(name, tensor, (dim,))


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


def _address(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> int:
    if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_contiguous():
        _refuse(name, tensor, dtype, shape)
    if not tensor.is_cpu:
        raise ValueError(f"{name} is on {tensor.device}: this kernel set runs on the CPU")
    return tensor.data_ptr()


def _refuse(name: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    have = f"{tensor.dtype} {tuple(tensor.shape)}"
    if not tensor.is_contiguous():
        have += f" with strides {tuple(tensor.stride())}"
    raise ValueError(f"{name} is {have}: it must be contiguous {dtype} {shape}")
