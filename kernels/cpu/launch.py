"""A bound launch: raw addresses in one table, and the parallel region that runs it.

A table holds the body's machine address, the address of its arguments and the number of chunks,
then the arguments. Bodies are called by address, so that this region (and the one of `team`, for a
whole step) is compiled once for all kernels: a parallel function costs a second each. One chunk
runs on the calling thread; more run side by side, each writing its own outputs, so that the number
of threads changes no bits.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import Any

import numba
from llvmlite import ir
from numba import prange, types
from numba.extending import intrinsic

from .jit import KERNEL_SIGNATURE, device
from .memory import load_i64

__all__ = ["HEADER", "Launch", "bind", "call_body", "threads_for"]

PARALLEL_BYTES = 256 * 1024
"""Below this much data to read, waking a second thread costs more than it brings."""
HEADER = 3

_addresses: dict[Any, int] = {}
"""body -> machine address. Keyed by the body itself, so that its code lives while it may be called:
the body of a user's set that was replaced would else be freed, and its id given to another.
"""


@intrinsic
def call_body(typing: Any, body: types.Type, a: types.Type, b: types.Type, c: types.Type) -> Any:
    """Calls the kernel body at a machine address."""
    word = ir.IntType(64)

    def generate(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [word] * 3)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), list(args[1:]))
        return context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp, types.intp), generate


@device(parallel=True)
def _play(table):
    body = load_i64(table, 0)
    arguments = load_i64(table, 1)
    chunks = load_i64(table, 2)
    if chunks == 1:
        call_body(body, arguments, 0, 1)
    else:
        for chunk in prange(chunks):
            call_body(body, arguments, chunk, chunks)


class Launch:
    """Launches what was bound: no argument, no allocation, any number of times."""

    __slots__ = ("_address", "_kept", "_table", "kernel")

    def __init__(self, table: array[int], kept: object, kernel: str):
        self._table, self._kept = table, kept
        self._address = table.buffer_info()[0]
        self.kernel = kernel

    def __call__(self) -> None:
        _play(self._address)

    @property
    def header(self) -> array[int]:
        """Body, arguments and chunks, as `team` plays them."""
        return self._table[:HEADER]


def threads_for(data_bytes: int) -> int:
    """Chunks for a kernel that reads this much: one below the threshold, else one per thread."""
    return 1 if data_bytes < PARALLEL_BYTES else numba.get_num_threads()


def bind(body: Any, arguments: Sequence[int | float], kept: object, data_bytes: int = 0) -> Launch:
    """Binds integers (addresses, sizes) and floats to a kernel body.

    `kept` is kept alive with the launch: the tensors that the addresses belong to.
    """
    words = [_word(value) for value in arguments]
    table = array("q", [_machine_address(body), 0, threads_for(data_bytes), *words])
    table[1] = table.buffer_info()[0] + 8 * HEADER
    return Launch(table, kept, body.__name__.removeprefix("_"))


def _word(value: float) -> int:
    if isinstance(value, float):
        return int(struct.unpack("q", struct.pack("d", value))[0])
    return value


def _machine_address(body: Any) -> int:
    """Compiles the body at its first bind (or loads it from the cache)."""
    address = _addresses.get(body)
    if address is None:
        body.compile(KERNEL_SIGNATURE)
        compiled = body.get_compile_result(types.void(*KERNEL_SIGNATURE))
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
        _addresses[body] = address
    return address
