"""THE dot product of every linear: one chain of operations per output, whatever the tile.

Chain: lanes accumulate sixteen bf16 pairs a step, even elements in one accumulator and odd ones
in another, by fma in float32; then hsum(even + odd); then the last k % 32 elements one by one by
scalar fma. A tile runs several such chains side by side, so tiles never change bits.
"""

from __future__ import annotations

from .jit import device
from .memory import even, load1, odd, prefetch
from .simd import add, fma, hsum, zero

__all__ = ["STEP", "TILE", "dot", "dot_1x4", "dot_2x4"]

STEP = 32
"""Elements a step: sixteen lanes of pairs, one cache line."""
TILE = 4
"""Weight rows a tile."""


@device
def _finish(total, w, x, start, k):
    for i in range(start, k):
        total = fma(load1(w, i), load1(x, i), total)
    return total


@device
def dot(w, x, k):
    """Sum of w[i] * x[i] over k bf16 elements at the addresses w and x, in float32."""
    a = zero()
    b = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        a = fma(even(w, i), even(x, i), a)
        b = fma(odd(w, i), odd(x, i), b)
    return _finish(hsum(add(a, b)), w, x, whole, k)


@device
def dot_1x4(w, x, k):
    """Dots of x with four weight rows that follow each other; asks for the next four."""
    w1, w2, w3 = w + 2 * k, w + 4 * k, w + 6 * k
    a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        e = even(x, i)
        o = odd(x, i)
        a0 = fma(even(w, i), e, a0)
        b0 = fma(odd(w, i), o, b0)
        a1 = fma(even(w1, i), e, a1)
        b1 = fma(odd(w1, i), o, b1)
        a2 = fma(even(w2, i), e, a2)
        b2 = fma(odd(w2, i), o, b2)
        a3 = fma(even(w3, i), e, a3)
        b3 = fma(odd(w3, i), o, b3)
        prefetch(w, i + 4 * k)
        prefetch(w, i + 5 * k)
        prefetch(w, i + 6 * k)
        prefetch(w, i + 7 * k)
    return (
        _finish(hsum(add(a0, b0)), w, x, whole, k),
        _finish(hsum(add(a1, b1)), w1, x, whole, k),
        _finish(hsum(add(a2, b2)), w2, x, whole, k),
        _finish(hsum(add(a3, b3)), w3, x, whole, k),
    )


@device
def dot_2x4(w, x, k):
    """Dots of two x rows that follow each other with four weight rows: x row 0's four first."""
    x1 = x + 2 * k
    w1, w2, w3 = w + 2 * k, w + 4 * k, w + 6 * k
    a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero()
    c0 = d0 = c1 = d1 = c2 = d2 = c3 = d3 = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        e0 = even(x, i)
        o0 = odd(x, i)
        e1 = even(x1, i)
        o1 = odd(x1, i)
        u = even(w, i)
        v = odd(w, i)
        a0 = fma(u, e0, a0)
        b0 = fma(v, o0, b0)
        c0 = fma(u, e1, c0)
        d0 = fma(v, o1, d0)
        u = even(w1, i)
        v = odd(w1, i)
        a1 = fma(u, e0, a1)
        b1 = fma(v, o0, b1)
        c1 = fma(u, e1, c1)
        d1 = fma(v, o1, d1)
        u = even(w2, i)
        v = odd(w2, i)
        a2 = fma(u, e0, a2)
        b2 = fma(v, o0, b2)
        c2 = fma(u, e1, c2)
        d2 = fma(v, o1, d2)
        u = even(w3, i)
        v = odd(w3, i)
        a3 = fma(u, e0, a3)
        b3 = fma(v, o0, b3)
        c3 = fma(u, e1, c3)
        d3 = fma(v, o1, d3)
    return (
        _finish(hsum(add(a0, b0)), w, x, whole, k),
        _finish(hsum(add(a1, b1)), w1, x, whole, k),
        _finish(hsum(add(a2, b2)), w2, x, whole, k),
        _finish(hsum(add(a3, b3)), w3, x, whole, k),
        _finish(hsum(add(c0, d0)), w, x1, whole, k),
        _finish(hsum(add(c1, d1)), w1, x1, whole, k),
        _finish(hsum(add(c2, d2)), w2, x1, whole, k),
        _finish(hsum(add(c3, d3)), w3, x1, whole, k),
    )
