"""One head of the gated delta rule, as delta.py states it: the order of its operations."""

from __future__ import annotations

import numpy as np

from .jit import device
from .memory import load_f32, load_f32x16, put_f32, put_f32x16
from .scalar import exp
from .simd import LANES, fma, mul, splat, sub, zero

__all__ = ["delta_head"]

BLOCK = 4 * LANES
PLUS_ZERO = np.float32(0.0)


@device
def _columns_64(state, q, k, v, y, keep, beta, scale, dk, dv, j):
    """Columns j..j+63 of one head of one row."""
    m0 = m1 = m2 = m3 = y0 = y1 = y2 = y3 = zero()
    kept = splat(keep)
    for i in range(dk):
        at = i * dv + j
        key = splat(load_f32(k, i))
        m0 = fma(mul(load_f32x16(state, at), kept), key, m0)
        m1 = fma(mul(load_f32x16(state, at + LANES), kept), key, m1)
        m2 = fma(mul(load_f32x16(state, at + 2 * LANES), kept), key, m2)
        m3 = fma(mul(load_f32x16(state, at + 3 * LANES), kept), key, m3)
    d0 = mul(splat(beta), sub(load_f32x16(v, j), m0))
    d1 = mul(splat(beta), sub(load_f32x16(v, j + LANES), m1))
    d2 = mul(splat(beta), sub(load_f32x16(v, j + 2 * LANES), m2))
    d3 = mul(splat(beta), sub(load_f32x16(v, j + 3 * LANES), m3))
    for i in range(dk):
        at = i * dv + j
        key = splat(load_f32(k, i))
        query = splat(mul(load_f32(q, i), scale))
        s0 = fma(key, d0, mul(load_f32x16(state, at), kept))
        s1 = fma(key, d1, mul(load_f32x16(state, at + LANES), kept))
        s2 = fma(key, d2, mul(load_f32x16(state, at + 2 * LANES), kept))
        s3 = fma(key, d3, mul(load_f32x16(state, at + 3 * LANES), kept))
        put_f32x16(state, at, s0)
        put_f32x16(state, at + LANES, s1)
        put_f32x16(state, at + 2 * LANES, s2)
        put_f32x16(state, at + 3 * LANES, s3)
        y0 = fma(s0, query, y0)
        y1 = fma(s1, query, y1)
        y2 = fma(s2, query, y2)
        y3 = fma(s3, query, y3)
    put_f32x16(y, j, y0)
    put_f32x16(y, j + LANES, y1)
    put_f32x16(y, j + 2 * LANES, y2)
    put_f32x16(y, j + 3 * LANES, y3)


@device
def _columns_16(state, q, k, v, y, keep, beta, scale, dk, dv, j):
    m = zero()
    total = zero()
    kept = splat(keep)
    for i in range(dk):
        m = fma(mul(load_f32x16(state, i * dv + j), kept), splat(load_f32(k, i)), m)
    d = mul(splat(beta), sub(load_f32x16(v, j), m))
    for i in range(dk):
        at = i * dv + j
        s = fma(splat(load_f32(k, i)), d, mul(load_f32x16(state, at), kept))
        put_f32x16(state, at, s)
        total = fma(s, splat(mul(load_f32(q, i), scale)), total)
    put_f32x16(y, j, total)


@device
def _column(state, q, k, v, y, keep, beta, scale, dk, dv, j):
    m = PLUS_ZERO
    total = PLUS_ZERO
    for i in range(dk):
        m = fma(mul(load_f32(state, i * dv + j), keep), load_f32(k, i), m)
    d = mul(beta, sub(load_f32(v, j), m))
    for i in range(dk):
        at = i * dv + j
        s = fma(load_f32(k, i), d, mul(load_f32(state, at), keep))
        put_f32(state, at, s)
        total = fma(s, mul(load_f32(q, i), scale), total)
    put_f32(y, j, total)


@device
def delta_head(state, q, k, v, y, decay, beta, scale, dk, dv):
    """One head of one row: its state [dk, dv] is updated, y [dv] is written."""
    keep = exp(decay)
    blocks = dv - dv % BLOCK
    whole = dv - dv % LANES
    for j in range(0, blocks, BLOCK):
        _columns_64(state, q, k, v, y, keep, beta, scale, dk, dv, j)
    for j in range(blocks, whole, LANES):
        _columns_16(state, q, k, v, y, keep, beta, scale, dk, dv, j)
    for j in range(whole, dv):
        _column(state, q, k, v, y, keep, beta, scale, dk, dv, j)
