"""Sixteen float lanes, and arithmetic that is one fixed piece of IR each.

The width is part of the numerics: hardware with narrower vectors splits the sixteen, which
changes no bits. Arithmetic takes one float32 or sixteen lanes and gives the same kind, so that
a per-element function is written once. No instruction carries a fast-math flag.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic, models, register_model

__all__ = [
    "LANES", "F32x16", "add", "clamp", "div", "equal_lanes", "fma", "greatest", "hmax", "hsum",
    "hsum4", "keep_first", "like", "mul", "pow2_scale", "round_bf16", "splat", "sqrt", "sub",
    "v16", "zero",
]  # fmt: skip

LANES = 16

FLOAT, INT16, INT32 = ir.FloatType(), ir.IntType(16), ir.IntType(32)
VECTOR, VECTOR32 = ir.VectorType(FLOAT, LANES), ir.VectorType(INT32, LANES)


class F32x16(types.Type):
    """Sixteen float32 lanes in a register."""

    def __init__(self) -> None:
        super().__init__(name="f32x16")


v16 = F32x16()


@register_model(F32x16)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, declared: types.Type) -> None:
        super().__init__(manager, declared, VECTOR)


def constant(kind: ir.Type, value: float) -> ir.Constant:
    """`value` in every lane of `kind`."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [value] * kind.count)
    return ir.Constant(kind, value)


def integers(kind: ir.Type) -> ir.Type:
    """The 32-bit integers of the same shape as floats of `kind`."""
    return VECTOR32 if isinstance(kind, ir.VectorType) else INT32


def call_llvm(builder: ir.IRBuilder, name: str, result: ir.Type, arguments: list[ir.Value]) -> Any:
    """Calls the LLVM intrinsic `name`, declared on first use."""
    kind = ir.FunctionType(result, [value.type for value in arguments])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, arguments)


def _lanewise(arity: int, generate: Callable[..., Any]) -> Any:
    """An operation on `arity` operands that are all float32 or all sixteen lanes."""

    def typed(operands: tuple[types.Type, ...]) -> Any:
        if len(set(operands)) != 1 or operands[0] not in (types.float32, v16):
            return None
        return operands[0](*operands), lambda context, builder, sig, args: generate(builder, *args)

    if arity == 1:
        return intrinsic(lambda typing, a: typed((a,)))
    if arity == 2:
        return intrinsic(lambda typing, a, b: typed((a, b)))
    return intrinsic(lambda typing, a, b, c: typed((a, b, c)))


def _suffix(kind: ir.Type) -> str:
    return "v16f32" if isinstance(kind, ir.VectorType) else "f32"


def _fma(builder: ir.IRBuilder, a: Any, b: Any, c: Any) -> Any:
    return call_llvm(builder, f"llvm.fma.{_suffix(a.type)}", a.type, [a, b, c])


def _sqrt(builder: ir.IRBuilder, a: Any) -> Any:
    return call_llvm(builder, f"llvm.sqrt.{_suffix(a.type)}", a.type, [a])


def _greatest(builder: ir.IRBuilder, a: Any, b: Any) -> Any:
    return builder.select(builder.fcmp_ordered(">", b, a), b, a)


def _clamp(builder: ir.IRBuilder, a: Any, low: Any, high: Any) -> Any:
    # Ordered comparisons: a NaN is neither below nor above, so it stays.
    a = builder.select(builder.fcmp_ordered("<", a, low), low, a)
    return builder.select(builder.fcmp_ordered(">", a, high), high, a)


def bf16_bits(builder: ir.IRBuilder, a: Any) -> Any:
    """bf16 in the low half of each 32-bit lane: nearest even, and every NaN becomes 0x7FC0.

    A NaN's payload depends on operand order, which LLVM may commute, so it can't be kept.
    """
    kind = integers(a.type)
    bits = builder.bitcast(a, kind)
    odd = builder.and_(builder.lshr(bits, constant(kind, 16)), constant(kind, 1))
    up = builder.add(bits, builder.add(odd, constant(kind, 0x7FFF)))
    rounded = builder.lshr(up, constant(kind, 16))
    is_nan = builder.fcmp_unordered("uno", a, a)
    return builder.select(is_nan, constant(kind, 0x7FC0), rounded)


def _round_bf16(builder: ir.IRBuilder, a: Any) -> Any:
    kind = integers(a.type)
    return builder.bitcast(builder.shl(bf16_bits(builder, a), constant(kind, 16)), a.type)


MAGIC = 1.5 * 2**23
MAGIC_BITS = 0x4B400000


def _pow2_scale(builder: ir.IRBuilder, a: Any, shifted: Any) -> Any:
    # Two steps: 2^n itself may overflow or be subnormal where the product is neither.
    kind = integers(a.type)
    n = builder.sub(builder.bitcast(shifted, kind), constant(kind, MAGIC_BITS))
    half = builder.ashr(n, constant(kind, 1))
    for part in (half, builder.sub(n, half)):
        exponent = builder.shl(builder.add(part, constant(kind, 127)), constant(kind, 23))
        a = builder.fmul(a, builder.bitcast(exponent, a.type))
    return a


fma = _lanewise(3, _fma)
"""a * b + c with one rounding."""
add = _lanewise(2, lambda builder, a, b: builder.fadd(a, b))
sub = _lanewise(2, lambda builder, a, b: builder.fsub(a, b))
mul = _lanewise(2, lambda builder, a, b: builder.fmul(a, b))
div = _lanewise(2, lambda builder, a, b: builder.fdiv(a, b))
sqrt = _lanewise(1, _sqrt)
greatest = _lanewise(2, _greatest)
"""b where it is greater, else a: a NaN in b never wins, one in a stays."""
clamp = _lanewise(3, _clamp)
"""a within [b, c]; NaN stays NaN."""
round_bf16 = _lanewise(1, _round_bf16)
"""The float that a bf16 store would have kept: nearest even, one NaN."""
pow2_scale = _lanewise(2, _pow2_scale)
"""a * 2^n, where b = 1.5 * 2^23 + n holds the integer n in its low bits."""


@intrinsic
def like(typing: Any, a: types.Type, number: types.Type) -> Any:
    """`number` (a Python or float32 number) in float32, in every lane that `a` has."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        value = context.cast(builder, args[1], number, types.float32)
        return _spread(builder, value) if a == v16 else value

    return a(a, number), generate


def _spread(builder: ir.IRBuilder, value: Any) -> Any:
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), constant(VECTOR32, 0))


@intrinsic
def zero(typing: Any) -> Any:
    """Sixteen times +0."""
    return v16(), lambda context, builder, sig, args: constant(VECTOR, 0.0)


@intrinsic
def splat(typing: Any, a: types.Type) -> Any:
    """One float32 in all sixteen lanes."""
    return v16(types.float32), lambda context, builder, sig, args: _spread(builder, args[0])


def _fold(builder: ir.IRBuilder, a: Any, combine: Callable[..., Any]) -> Any:
    """THE reduction tree: lane i with lane i + 8, then + 4, + 2, + 1."""
    half = LANES
    while half > 1:
        half //= 2
        picks = (range(half), range(half, 2 * half))
        low, high = (
            builder.shuffle_vector(
                a,
                ir.Constant(a.type, ir.Undefined),
                ir.Constant(ir.VectorType(INT32, half), list(pick)),
            )
            for pick in picks
        )
        a = combine(builder, low, high)
    return builder.extract_element(a, ir.Constant(INT32, 0))


@intrinsic
def hsum(typing: Any, a: types.Type) -> Any:
    """The sum of sixteen lanes by the fixed tree."""
    return types.float32(v16), lambda context, builder, sig, args: _fold(
        builder, args[0], lambda b, low, high: b.fadd(low, high)
    )


def _picked(builder: ir.IRBuilder, a: Any, b: Any, lanes: list[int]) -> Any:
    mask = ir.Constant(ir.VectorType(INT32, len(lanes)), lanes)
    return builder.shuffle_vector(a, b, mask)


@intrinsic
def hsum4(typing: Any, a: types.Type, b: types.Type, c: types.Type, d: types.Type) -> Any:
    """`hsum` of four at once: the same tree for each, with a third of the instructions."""
    result = types.UniTuple(types.float32, 4)

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        def folded(x: Any, y: Any, width: int, groups: int) -> Any:
            # Of each group of `width` lanes, those of the lower half meet those of the upper.
            half = width // 2
            low = [width * group + lane for group in range(groups) for lane in range(half)]
            high = [lane + half for lane in low]
            return builder.fadd(_picked(builder, x, y, low), _picked(builder, x, y, high))

        eights = [folded(args[0], args[1], 16, 2), folded(args[2], args[3], 16, 2)]
        fours = folded(*eights, 8, 4)
        twos = folded(fours, ir.Constant(fours.type, ir.Undefined), 4, 4)
        ones = folded(twos, ir.Constant(twos.type, ir.Undefined), 2, 4)
        sums = [builder.extract_element(ones, ir.Constant(INT32, lane)) for lane in range(4)]
        return context.make_tuple(builder, result, sums)

    return result(v16, v16, v16, v16), generate


@intrinsic
def hmax(typing: Any, a: types.Type) -> Any:
    """The greatest of sixteen lanes, by `greatest` and the fixed tree."""
    return types.float32(v16), lambda context, builder, sig, args: _fold(
        builder, args[0], _greatest
    )


@intrinsic
def equal_lanes(typing: Any, a: types.Type, b: types.Type) -> Any:
    """How the lanes compare: bit i is set where they are equal as floats."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_ordered("==", *args), INT16)
        return builder.zext(bits, ir.IntType(64))

    return types.intp(v16, v16), generate


@intrinsic
def keep_first(typing: Any, a: types.Type, count: types.Type, fill: types.Type) -> Any:
    """Lanes 0..count-1 of `a`, and `fill` in the others."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        lane = ir.Constant(VECTOR32, list(range(LANES)))
        narrow = builder.trunc(args[1], INT32)
        first = builder.insert_element(
            ir.Constant(VECTOR32, ir.Undefined), narrow, ir.Constant(INT32, 0)
        )
        counts = builder.shuffle_vector(
            first, ir.Constant(VECTOR32, ir.Undefined), constant(VECTOR32, 0)
        )
        inside = builder.icmp_signed("<", lane, counts)
        return builder.select(inside, args[0], _spread(builder, args[2]))

    return v16(v16, types.intp, types.float32), generate
