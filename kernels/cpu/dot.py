"""THE dot product of every linear and every score: one chain of operations per output.

Chain: lanes accumulate sixteen bf16 pairs a step, even elements in one accumulator and odd ones
in another, by fma in float32; then hsum(even + odd); then the last k % 32 elements one by one by
scalar fma. A tile runs several such chains side by side, so tiles never change bits.
"""

from __future__ import annotations

from .jit import device
from .memory import even, load1, odd, prefetch
from .simd import add, fma, hsum, hsum4, zero

__all__ = ["STEP", "TILE", "dot", "dot_1x4", "dot_2x4", "dot_4_rows"]

STEP = 32
"""Elements a step: sixteen lanes of pairs, one cache line."""
TILE = 4
"""Weight rows a tile."""


@device
def _step(w, i, x_even, x_odd, a, b):
    return fma(even(w, i), x_even, a), fma(odd(w, i), x_odd, b)


@device
def _tail(total, w, x, start, k):
    for i in range(start, k):
        total = fma(load1(w, i), load1(x, i), total)
    return total


@device
def dot(w, x, k):
    """Sum of w[i] * x[i] over k bf16 elements at the addresses w and x, in float32."""
    a = b = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        a, b = _step(w, i, even(x, i), odd(x, i), a, b)
    return _tail(hsum(add(a, b)), w, x, whole, k)


@device
def dot_4_rows(w0, w1, w2, w3, x, k):
    """Dots of x with four rows, wherever they lie."""
    a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        e = even(x, i)
        o = odd(x, i)
        a0, b0 = _step(w0, i, e, o, a0, b0)
        a1, b1 = _step(w1, i, e, o, a1, b1)
        a2, b2 = _step(w2, i, e, o, a2, b2)
        a3, b3 = _step(w3, i, e, o, a3, b3)
    s = hsum4(add(a0, b0), add(a1, b1), add(a2, b2), add(a3, b3))
    return (
        _tail(s[0], w0, x, whole, k),
        _tail(s[1], w1, x, whole, k),
        _tail(s[2], w2, x, whole, k),
        _tail(s[3], w3, x, whole, k),
    )


@device
def dot_1x4(w, x, k):
    """Dots of x with four weight rows that follow each other; asks for the next four.

    The whole next tile, a line of it for each line read: nothing nearer or farther was faster
    where weights come from memory.
    """
    w1, w2, w3 = w + 2 * k, w + 4 * k, w + 6 * k
    a0 = b0 = a1 = b1 = a2 = b2 = a3 = b3 = zero()
    whole = k - k % STEP
    for i in range(0, whole, STEP):
        e = even(x, i)
        o = odd(x, i)
        a0, b0 = _step(w, i, e, o, a0, b0)
        a1, b1 = _step(w1, i, e, o, a1, b1)
        a2, b2 = _step(w2, i, e, o, a2, b2)
        a3, b3 = _step(w3, i, e, o, a3, b3)
        prefetch(w, i + 4 * k)
        prefetch(w, i + 5 * k)
        prefetch(w, i + 6 * k)
        prefetch(w, i + 7 * k)
    s = hsum4(add(a0, b0), add(a1, b1), add(a2, b2), add(a3, b3))
    return (
        _tail(s[0], w, x, whole, k),
        _tail(s[1], w1, x, whole, k),
        _tail(s[2], w2, x, whole, k),
        _tail(s[3], w3, x, whole, k),
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
        e = even(x, i)
        o = odd(x, i)
        f = even(x1, i)
        p = odd(x1, i)
        a0, b0 = _step(w, i, e, o, a0, b0)
        c0, d0 = _step(w, i, f, p, c0, d0)
        a1, b1 = _step(w1, i, e, o, a1, b1)
        c1, d1 = _step(w1, i, f, p, c1, d1)
        a2, b2 = _step(w2, i, e, o, a2, b2)
        c2, d2 = _step(w2, i, f, p, c2, d2)
        a3, b3 = _step(w3, i, e, o, a3, b3)
        c3, d3 = _step(w3, i, f, p, c3, d3)
    s = hsum4(add(a0, b0), add(a1, b1), add(a2, b2), add(a3, b3))
    t = hsum4(add(c0, d0), add(c1, d1), add(c2, d2), add(c3, d3))
    return (
        _tail(s[0], w, x, whole, k),
        _tail(s[1], w1, x, whole, k),
        _tail(s[2], w2, x, whole, k),
        _tail(s[3], w3, x, whole, k),
        _tail(t[0], w, x1, whole, k),
        _tail(t[1], w1, x1, whole, k),
        _tail(t[2], w2, x1, whole, k),
        _tail(t[3], w3, x1, whole, k),
    )
