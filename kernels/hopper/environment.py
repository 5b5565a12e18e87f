"""What must hold in the process for the bits to be the set's own."""

from __future__ import annotations

import torch
import triton.language as tl

from .check import DEVICE, f32
from .jit import kernel
from .launch import bind
from .overlap import enter

__all__ = ["check_environment"]

A, B, C = 1.0 + 2.0**-12, 1.0 + 2.0**-12, -(1.0 + 2.0**-11)
"""a * b + c is 0 with the product rounded, 2^-24 in one rounding."""


@kernel
def _multiply_add(values):
    enter()
    product = tl.load(values) * tl.load(values + 1)
    tl.store(values + 3, product + tl.load(values + 2))


def check_environment() -> None:
    """Refuses a compiler that contracts a multiplication and an addition into one rounding.

    Raises:
        RuntimeError: it does.
    """
    values = torch.tensor([A, B, C, float("nan")], dtype=torch.float32, device=DEVICE)
    bind(_multiply_add, (1,), (f32("values", values, (4,)),))()
    if float(values[3]) != 0.0:
        raise RuntimeError(
            "kernels are compiled with contracted multiply-adds, so that a fused kernel may have "
            "other bits than the ones it stands for; leave enable_fp_fusion off"
        )
