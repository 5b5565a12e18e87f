"""Adversarial values: what a wrong rounding, tree, tail or sign shows on.

bf16 rounding hides most changes of a sum's order on plain random data; rows that cancel show them
hundreds of times more often. Values that are huge on both sides give nothing but NaN, so each kind
keeps some outputs finite. R rows, D elements of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from metpipe.engine.microtest.guarded import FILL_BITS

__all__ = ["KINDS", "Subject", "draw"]

Role = Literal["operand", "stream", "matrix", "vector", "bias", "state"]
"""operand: an edge that a matrix is applied to; stream: any other edge."""
FIRST_NORMAL_BITS = 0x0080
BITS_OF_2_TO_20 = (127 + 20) << 7
NOISE = 2.0**-20
"""About what is left of a dot of cancelling rows."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A tensor to be filled: [R, D]; a vector has one row."""

    role: Role
    shape: tuple[int, int]
    index: int
    """among the group's tensors of this role"""
    beside_matrix: bool
    """whether the group applies a matrix to something"""

    @property
    def is_edge(self) -> bool:
        """Whether it is an activation."""
        return self.role in ("operand", "stream")


Draw = Callable[[Subject, torch.Generator], torch.Tensor]


def draw(kind: str, subject: Subject, seed: int) -> torch.Tensor:
    """bf16 values [R, D] of a kind; the same for the same seed."""
    values_RD = KINDS[kind](subject, torch.Generator().manual_seed(seed))
    drawn = values_RD.to(torch.bfloat16).contiguous()
    bits = drawn.view(torch.int16)
    bits[bits == FILL_BITS] = FILL_BITS + 1  # that mark is for what nobody wrote
    return drawn


def _normal(subject: Subject, g: torch.Generator) -> torch.Tensor:
    values_RD = torch.randn(subject.shape, generator=g)
    match subject.role:
        case "matrix":
            return values_RD / float(subject.shape[1] ** 0.5)
        case "vector":
            return 1 + values_RD / 4
    return values_RD


def _cancelling(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """Halves of x equal, of w opposite: a dot is what its tree's roundings leave."""
    half = subject.shape[1] // 2
    values_RD = _normal(subject, g)
    match subject.role:
        case "operand":
            values_RD[:, half : 2 * half] = values_RD[:, :half]
            values_RD[:, 2 * half :] *= NOISE
        case "matrix":
            values_RD[:, half : 2 * half] = -values_RD[:, :half]
        case "bias":
            values_RD *= NOISE
        case "stream":
            values_RD = _opposed(subject, values_RD)
    return values_RD


def _opposed(subject: Subject, noise_RD: torch.Tensor) -> torch.Tensor:
    """Streams of one width are each other's opposites but for an eighth of their elements."""
    shared = torch.Generator().manual_seed(subject.shape[1])
    values_RD = torch.randn(subject.shape, generator=shared) * (-1 if subject.index % 2 else 1)
    values_RD[:, ::8] += noise_RD[:, ::8] / 256
    return values_RD * (NOISE if subject.beside_matrix else 1)


def _huge_and_denormal(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """Huge times tiny: products are moderate, squares of even rows stay finite."""
    low, high = (-60, -40) if subject.role == "matrix" else (40, 60)
    if subject.role == "stream" and subject.beside_matrix:
        low, high = -10, 20  # of the products' size
    values_RD = _scaled(subject, g, low, high)
    if subject.is_edge:
        values_RD[1::2] *= 2.0**60
    if subject.role in ("vector", "bias"):
        values_RD = _scaled(subject, g, -30, 30)
    denormal_RD = _bits(subject, g, FIRST_NORMAL_BITS)
    chosen_RD = torch.rand(subject.shape, generator=g) < 1 / 8
    return torch.where(chosen_RD, denormal_RD, values_RD)


def _nonfinite(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """NaN, inf and -inf here and there: in odd rows, and in weights; even rows stay finite."""
    values_RD = _normal(subject, g)
    strange = torch.tensor([torch.nan, torch.inf, -torch.inf, -torch.nan])
    picked_RD = strange[torch.randint(4, subject.shape, generator=g)]
    chosen_RD = torch.rand(subject.shape, generator=g) < 2 / subject.shape[1]
    if subject.role not in ("vector", "bias"):
        chosen_RD[::2] = False
    return torch.where(chosen_RD, picked_RD, values_RD)


def _mixed_exponents(subject: Subject, g: torch.Generator) -> torch.Tensor:
    if subject.role in ("operand", "matrix"):
        return _scaled(subject, g, -15, 15)
    return _scaled(subject, g, -30, 30)


def _negative_zero(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """Half of it -0.0, a quarter +0.0; a whole row of -0.0 beside them."""
    values_RD = _normal(subject, g)
    fate_RD = torch.rand(subject.shape, generator=g)
    values_RD[fate_RD < 0.75] = 0.0
    values_RD[fate_RD < 0.5] = -0.0
    if subject.role != "vector":
        values_RD[1:2] = -0.0
    return values_RD


def _all_equal(subject: Subject, g: torch.Generator) -> torch.Tensor:
    value = 0.0546875 if subject.role == "matrix" else 0.7109375 / (subject.index + 1)
    return torch.full(subject.shape, value)


def _one_hot(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """One element of each row; weights are whole."""
    values_RD = _normal(subject, g)
    if not subject.is_edge:
        return values_RD
    column_R = torch.randint(subject.shape[1], (subject.shape[0], 1), generator=g)
    return torch.zeros(subject.shape).scatter(1, column_R, values_RD.gather(1, column_R))


def _zero_rows(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """Even rows are zero; so are biases, and every fifth row of a matrix."""
    values_RD = _normal(subject, g)
    match subject.role:
        case "matrix":
            values_RD[::5] = 0
        case "bias":
            values_RD[:] = 0
        case "operand" | "stream" | "state":
            values_RD[::2] = 0
    return values_RD


def _random_bits(subject: Subject, g: torch.Generator) -> torch.Tensor:
    """Any bits at all in odd rows and parts of weights, any bits below 2^20 in even rows."""
    values_RD = _bits(subject, g, 1 << 15)
    tame_RD = _bits(subject, g, BITS_OF_2_TO_20)
    match subject.role:
        case "matrix":
            tame_RD = _normal(subject, g).to(torch.bfloat16)
            tame_RD[::4] = values_RD[::4]
        case "vector" | "bias":
            tame_RD[:, ::8] = values_RD[:, ::8]
        case _:
            tame_RD[1::2] = values_RD[1::2]
    return tame_RD


def _scaled(subject: Subject, g: torch.Generator, low: int, high: int) -> torch.Tensor:
    """Mantissas of either sign times 2^low .. 2^high."""
    exponent_RD = torch.randint(low, high + 1, subject.shape, generator=g)
    mantissa_RD = 1 + torch.rand(subject.shape, generator=g)
    sign_RD = 2.0 * torch.randint(2, subject.shape, generator=g) - 1
    return sign_RD * torch.ldexp(mantissa_RD, exponent_RD)


def _bits(subject: Subject, g: torch.Generator, end: int) -> torch.Tensor:
    """bf16 whose bits without the sign are any number below `end`; either sign."""
    bits_RD = torch.randint(0, end, subject.shape, generator=g)
    sign_RD = torch.randint(2, subject.shape, generator=g) << 15
    return (bits_RD | sign_RD).to(torch.uint16).view(torch.bfloat16)


KINDS: Mapping[str, Draw] = {
    "normal": _normal,
    "cancelling": _cancelling,
    "huge and denormal": _huge_and_denormal,
    "NaN and inf": _nonfinite,
    "mixed exponents": _mixed_exponents,
    "negative zero": _negative_zero,
    "all equal": _all_equal,
    "one hot": _one_hot,
    "zero rows": _zero_rows,
    "random bits": _random_bits,
}
