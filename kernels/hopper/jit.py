"""How the set's functions are compiled.

No multiplication and addition are contracted by the compiler (launch.py asks for that at every
launch): whether it would do so depends on the code around them, and a fused kernel has other code
around. Where one rounding is wanted, fma is written.
"""

from __future__ import annotations

import triton
from triton.experimental import gluon

__all__ = ["device", "kernel", "shared_device", "shared_kernel"]

kernel = triton.jit
"""What a launch runs."""
device = triton.jit
"""What kernels call; fused and unfused ones call the same."""
shared_kernel = gluon.jit
"""A kernel that lays its shared memory out by hand (Gluon). It calls `device` functions too."""
shared_device = gluon.jit
