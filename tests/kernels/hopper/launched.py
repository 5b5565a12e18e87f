"""Binds a kernel to copies of host tensors on the GPU, runs it once, and brings back the bits.

Outputs start as NaN of a pattern that no kernel makes, between margins of it. Under
TRITON_INTERPRET=1 kernels run on the CPU, interpreted.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from tests.kernels.cpu.values import GUARD, MARGIN

__all__ = ["INTERPRETED", "Out", "launched", "same", "there"]

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"

GUARD_F32, GUARD_I32 = 0x7F812345, 0x7F812345
PADDED = 64 * ((MARGIN + 63) // 64)
"""Elements before an output: aligned as the engine's buffers are."""
RAW = {torch.bfloat16: torch.int16, torch.float32: torch.int32, torch.int32: torch.int32}
GUARDS = {torch.bfloat16: GUARD, torch.float32: GUARD_F32, torch.int32: GUARD_I32}


class Out:
    """An output of a shape and dtype; `shift` moves it off its alignment, by elements."""

    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16, shift: int = 0) -> None:
        size, start = int(torch.tensor(shape).prod()), PADDED + shift
        raw = torch.full((size + 2 * PADDED,), GUARDS[dtype], dtype=RAW[dtype], device=DEVICE)
        self._raw, self._start, self._size = raw, start, size
        self.tensor = raw.view(dtype)[start : start + size].view(shape)

    def check(self) -> torch.Tensor:
        """The tensor on the host, once the margins are found whole and no element unwritten."""
        guard = GUARDS[self.tensor.dtype]
        raw, stop = self._raw.cpu(), self._start + self._size
        assert bool((raw[: self._start] == guard).all()), "wrote before its output"
        assert bool((raw[stop:] == guard).all()), "wrote past its output"
        assert not bool((raw[self._start : stop] == guard).any()), "left a hole in its output"
        return self.tensor.cpu()


def there(value: Any) -> Any:
    """A copy of a tensor on the GPU; anything else as it is."""
    return value.to(DEVICE, copy=True) if isinstance(value, torch.Tensor) else value


def launched(function: Any, outputs: dict[str, Out], **arguments: Any) -> dict[str, torch.Tensor]:
    """Run a kernel: what its outputs hold, and the arguments that it may have changed, on the host.

    Arguments are copied to the GPU, so that the host's stay as they are.
    """
    moved = {name: there(value) for name, value in arguments.items()}
    function(**moved, **{name: out.tensor for name, out in outputs.items()})()
    if not INTERPRETED:
        torch.cuda.synchronize()
    found = {name: out.check() for name, out in outputs.items()}
    for name, value in moved.items():
        if isinstance(value, torch.Tensor) and name in ("k_pool", "v_pool", "conv", "h", "steps"):
            found[name] = value.cpu()
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are equal bit for bit."""
    raw = RAW[a.dtype]
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(a.contiguous().view(raw), b.contiguous().view(raw))
    )
