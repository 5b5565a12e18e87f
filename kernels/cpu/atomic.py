"""Atomic int64 words, by address and index, for threads that work on one step together."""

from __future__ import annotations

import platform
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .simd import call_llvm

__all__ = ["atomic_add", "atomic_load", "atomic_store", "pause", "yield_core"]

INT64 = ir.IntType(64)
WORD = types.intp
WAIT = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}
"""LLVM's name, and its arguments, for telling a core that its thread is spinning."""


def _word(builder: ir.IRBuilder, base: Any, index: Any) -> Any:
    return builder.gep(builder.inttoptr(base, INT64.as_pointer()), [index])


@intrinsic
def atomic_load(typing: Any, base: types.Type, index: types.Type) -> Any:
    """The word, and all that was written before it was stored."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.load_atomic(_word(builder, *args), "acquire", align=8)

    return WORD(WORD, WORD), generate


@intrinsic
def atomic_store(typing: Any, base: types.Type, index: types.Type, value: types.Type) -> Any:
    """Stores the word, after all that was written before."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        builder.store_atomic(args[2], _word(builder, *args[:2]), "release", align=8)
        return context.get_dummy_value()

    return types.void(WORD, WORD, WORD), generate


@intrinsic
def atomic_add(typing: Any, base: types.Type, index: types.Type, value: types.Type) -> Any:
    """Adds to the word; the word before."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        return builder.atomic_rmw("add", _word(builder, *args[:2]), args[2], "acq_rel")

    return WORD(WORD, WORD, WORD), generate


@intrinsic
def pause(typing: Any) -> Any:
    """Spins for a moment."""
    hint = WAIT.get(platform.machine())

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        if hint is not None:
            values = [ir.Constant(ir.IntType(32), value) for value in hint[1]]
            call_llvm(builder, hint[0], ir.VoidType(), values)
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def yield_core(typing: Any) -> Any:
    """Lets another thread have this core (POSIX sched_yield)."""

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        name = "sched_yield"
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [])
        return context.get_dummy_value()

    return types.void(), generate
