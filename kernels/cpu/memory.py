"""Loads and stores by raw address: base address in bytes, offset in elements.

Array indexing is avoided on purpose: its wrap-around of negative indices keeps LLVM from using
vectors. Nothing is checked here; wrappers check shapes when they bind.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from .simd import (
    FLOAT,
    INT16,
    INT32,
    LANES,
    VECTOR,
    VECTOR32,
    bf16_bits,
    call_llvm,
    constant,
    integers,
    v16,
)

__all__ = [
    "copy_bytes", "even", "load1", "load16", "load_f32", "load_f32x16", "load_i32", "load_i64",
    "load_number", "load_u8", "load_u64", "odd", "prefetch", "put_f32", "put_f32x16", "stack_f32",
    "store1", "store16", "store_f32", "store_f32x16", "store_i32", "store_i64", "store_nan",
    "store_pairs",
]  # fmt: skip

INT8, INT64, DOUBLE = ir.IntType(8), ir.IntType(64), ir.DoubleType()
VECTOR16 = ir.VectorType(INT16, LANES)
ADDRESS = types.intp


def _pointer(builder: ir.IRBuilder, base: Any, index: Any, element: ir.Type, kind: ir.Type) -> Any:
    first = builder.inttoptr(base, element.as_pointer())
    return builder.bitcast(builder.gep(first, [index]), kind.as_pointer())


def _load(element: ir.Type, kind: ir.Type, align: int, result: types.Type, widen: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1], element, kind)
        return widen(builder, builder.load(pointer, align=align))

    return intrinsic(lambda typing, base, index: (result(ADDRESS, ADDRESS), generate))


def _store(element: ir.Type, kind: ir.Type, align: int, value: types.Type, narrow: Any) -> Any:
    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1], element, kind)
        builder.store(narrow(builder, args[2]), pointer, align=align)
        return context.get_dummy_value()

    return intrinsic(
        lambda typing, base, index, what: (types.void(ADDRESS, ADDRESS, value), generate)
    )


def _same(builder: ir.IRBuilder, a: Any) -> Any:
    return a


def _widen(builder: ir.IRBuilder, a: Any) -> Any:
    if isinstance(a.type, ir.VectorType):
        wide = builder.shl(builder.zext(a, VECTOR32), constant(VECTOR32, 16))
        return builder.bitcast(wide, VECTOR)
    return builder.bitcast(builder.shl(builder.zext(a, INT32), ir.Constant(INT32, 16)), FLOAT)


def _narrow(builder: ir.IRBuilder, a: Any) -> Any:
    bits = bf16_bits(builder, a)
    return builder.trunc(bits, VECTOR16 if isinstance(a.type, ir.VectorType) else INT16)


def _one_nan(builder: ir.IRBuilder, a: Any) -> Any:
    is_nan = builder.fcmp_unordered("uno", a, a)
    bits = builder.bitcast(a, integers(a.type))
    return builder.bitcast(builder.select(is_nan, constant(bits.type, 0x7FC00000), bits), a.type)


def _low(builder: ir.IRBuilder, a: Any) -> Any:
    return builder.bitcast(builder.shl(a, constant(VECTOR32, 16)), VECTOR)


def _high(builder: ir.IRBuilder, a: Any) -> Any:
    return builder.bitcast(builder.and_(a, constant(VECTOR32, 0xFFFF0000)), VECTOR)


even = _load(INT16, VECTOR32, 2, v16, _low)
"""bf16 elements i, i+2, .. i+30 as floats: the low halves of sixteen pairs."""
odd = _load(INT16, VECTOR32, 2, v16, _high)
"""bf16 elements i+1, i+3, .. i+31 as floats: the high halves of the same sixteen pairs."""
load1 = _load(INT16, INT16, 2, types.float32, _widen)
"""bf16 element i as a float."""
load16 = _load(INT16, VECTOR16, 2, v16, _widen)
"""bf16 elements i .. i+15 as floats."""
store1 = _store(INT16, INT16, 2, types.float32, _narrow)
"""Rounds a float to bf16 element i."""
store16 = _store(INT16, VECTOR16, 2, v16, _narrow)
"""Rounds sixteen floats to bf16 elements i .. i+15."""
load_f32 = _load(FLOAT, FLOAT, 4, types.float32, _same)
load_f32x16 = _load(FLOAT, VECTOR, 4, v16, _same)
store_f32 = _store(FLOAT, FLOAT, 4, types.float32, _same)
store_f32x16 = _store(FLOAT, VECTOR, 4, v16, _same)
put_f32 = _store(FLOAT, FLOAT, 4, types.float32, _one_nan)
"""Writes a float that others will read, in an edge or a state: every NaN as 0x7FC00000."""
put_f32x16 = _store(FLOAT, VECTOR, 4, v16, _one_nan)
"""`put_f32` of sixteen."""
load_i32 = _load(INT32, INT32, 4, types.intp, lambda builder, a: builder.sext(a, INT64))
load_i64 = _load(INT64, INT64, 8, types.intp, _same)
load_u64 = _load(INT64, INT64, 1, types.uint64, _same)
load_u8 = _load(INT8, INT8, 1, types.uint64, lambda builder, a: builder.zext(a, INT64))
load_number = _load(DOUBLE, DOUBLE, 8, types.float32, lambda builder, a: builder.fptrunc(a, FLOAT))
"""A bound float argument, as float32."""
store_i64 = _store(INT64, INT64, 8, types.intp, _same)
store_i32 = _store(INT32, INT32, 4, types.intp, lambda builder, a: builder.trunc(a, INT32))


@intrinsic
def store_pairs(typing: Any, base: types.Type, i: types.Type, a: types.Type, b: types.Type) -> Any:
    """Rounds to bf16 elements i .. i+31: the even ones of `a`, the odd ones of `b`."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        low, high = (bf16_bits(builder, value) for value in args[2:])
        pairs = builder.or_(low, builder.shl(high, constant(VECTOR32, 16)))
        builder.store(pairs, _pointer(builder, *args[:2], INT16, VECTOR32), align=2)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, v16, v16), generate


@intrinsic
def store_nan(typing: Any, base: types.Type, index: types.Type) -> Any:
    """Writes the one NaN, 0x7FC0, to bf16 element i."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1], INT16, INT16)
        builder.store(ir.Constant(INT16, 0x7FC0), pointer, align=2)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS), generate


@intrinsic
def prefetch(typing: Any, base: types.Type, index: types.Type) -> Any:
    """Asks for the cache line of bf16 element i; any address is allowed, no bits change."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0], args[1], INT16, INT8)
        read, keep, data = (ir.Constant(INT32, value) for value in (0, 3, 1))
        call_llvm(builder, "llvm.prefetch.p0", ir.VoidType(), [pointer, read, keep, data])
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS), generate


@intrinsic
def copy_bytes(typing: Any, target: types.Type, source: types.Type, count: types.Type) -> Any:
    """Copies `count` bytes between buffers that do not overlap."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        into, out_of = (builder.inttoptr(value, INT8.as_pointer()) for value in args[:2])
        cgutils.raw_memcpy(builder, into, out_of, args[2], 1)
        return context.get_dummy_value()

    return types.void(ADDRESS, ADDRESS, ADDRESS), generate


@intrinsic(prefer_literal=True)
def stack_f32(typing: Any, count: types.Type) -> Any:
    """The address of `count` (a literal) floats on the stack, valid until the function returns."""
    if not isinstance(count, types.IntegerLiteral):
        return None
    kind = ir.ArrayType(FLOAT, count.literal_value)

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(cgutils.alloca_once(builder, kind), INT64)

    return ADDRESS(count), generate
