"""Values that show a wrong bit: rounding hides one, and so does data of NaN or of zeros."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["CLASSES", "SOUND", "bits", "guarded", "make", "same_bits"]

Maker = Callable[[torch.Generator, tuple[int, ...]], torch.Tensor]

GUARD = 0x7F81  # a signalling NaN that no kernel makes: the canonical one is 0x7FC0
MARGIN = 67


def _normal(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=seed).bfloat16()


SHIFT = 7
"""Partners stand in other lanes of a vector, so that lanes cancel too and not only steps."""


def _halves(seed: torch.Generator, shape: tuple[int, ...], sign: float) -> torch.Tensor:
    x = torch.zeros(shape)
    half = max(shape[-1] // 2, 1)
    x[..., :half] = torch.randn((*shape[:-1], half), generator=seed)
    x[..., half : 2 * half] = sign * x[..., :half].roll(SHIFT, -1)
    return x.bfloat16()


def _cancelling(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Second half = minus the first, shifted: a sum of it is what rounding left, and no more."""
    return _halves(seed, shape, -1.0)


def _paired(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Second half = the first, shifted: against a cancelling weight, products cancel."""
    return _halves(seed, shape, 1.0)


def _huge_and_tiny(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    exponent = torch.randint(0, 2, shape, generator=seed) * 250.0 - 130.0
    return (torch.randn(shape, generator=seed).double() * 2.0 ** exponent.double()).bfloat16()


def _mixed(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    exponent = torch.randint(-20, 20, shape, generator=seed)
    return (torch.randn(shape, generator=seed) * 2.0**exponent).bfloat16()


def _sparse_nan(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    x = torch.randn(shape, generator=seed)
    drawn = torch.rand(shape, generator=seed)
    x[drawn < 0.002] = float("nan")
    x[(drawn > 0.002) & (drawn < 0.004)] = float("inf")
    x[(drawn > 0.004) & (drawn < 0.006)] = -float("inf")
    return x.bfloat16()


def _zeros(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros of both signs, some ones."""
    drawn = torch.randint(0, 4, shape, generator=seed)
    return torch.tensor([0.0, -0.0, 1.0, -1.0])[drawn].bfloat16()


def _any_bits(seed: torch.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    drawn = torch.randint(-(2**15), 2**15, shape, generator=seed, dtype=torch.int32)
    return drawn.to(torch.int16).view(torch.bfloat16)


CLASSES: dict[str, Maker] = {
    "normal": _normal,
    "cancelling": _cancelling,
    "paired": _paired,
    "huge_and_tiny": _huge_and_tiny,
    "mixed_exponents": _mixed,
    "sparse_nan_and_inf": _sparse_nan,
    "signed_zeros": _zeros,
    "any_bits": _any_bits,
}

SOUND = ("normal", "cancelling", "paired", "mixed_exponents", "signed_zeros")
"""Classes whose results must be finite: with these, a comparison is not of NaN with NaN."""


def make(kind: str, seed: int, *shape: int) -> torch.Tensor:
    """bf16 values of a class."""
    return CLASSES[kind](torch.Generator().manual_seed(seed), shape)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The raw bits of a bf16 tensor, as int16."""
    return tensor.contiguous().view(torch.int16)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two bf16 tensors are equal bit for bit: equal NaN pass, -0 against +0 does not."""
    return a.shape == b.shape and torch.equal(bits(a), bits(b))


class guarded:
    """An output of NaN between margins of NaN: `check` shows that it alone was written, whole."""

    def __init__(self, *shape: int) -> None:
        size = int(torch.tensor(shape).prod())
        filled = torch.full((size + 2 * MARGIN,), GUARD, dtype=torch.int16)
        self._whole = filled.view(torch.bfloat16)
        self.tensor = self._whole[MARGIN : MARGIN + size].view(shape)

    def untouched(self) -> bool:
        """Whether nothing was written, neither in the tensor nor beside it."""
        return bool((self._whole.view(torch.int16) == GUARD).all())

    def check(self) -> torch.Tensor:
        """The tensor, once the margins are found whole and no element unwritten."""
        raw = self._whole.view(torch.int16)
        assert bool((raw[:MARGIN] == GUARD).all()), "wrote before its output"
        assert bool((raw[-MARGIN:] == GUARD).all()), "wrote past its output"
        assert not bool((bits(self.tensor) == GUARD).any()), "left a hole in its output"
        return self.tensor
