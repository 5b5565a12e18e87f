"""Per-element functions, for one float32 or sixteen lanes: the same operations either way.

Fused and unfused kernels call the same ones, and `round_bf16` stands wherever an unfused chain
would have stored.
"""

from __future__ import annotations

from .jit import device
from .simd import MAGIC, add, clamp, div, fma, like, mul, pow2_scale, round_bf16, sqrt, sub

__all__ = [
    "add1", "decay1", "exp", "gated1", "normed1", "normed_one_plus1", "rotate_high", "rotate_low",
    "rsqrt", "sigmoid", "sigmoid_mul1", "silu", "silu_mul1", "softplus",
]  # fmt: skip

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.6931471824645996  # float32 nearest to ln 2
LN2_LOW = -1.904654323148236e-09  # ln 2 less that, to float32

# exp(r) = 1 + r + r^2 (C2 + C3 r + C4 r^2 + C5 r^3 + C6 r^4) on |r| <= ln(2)/2: the minimax of the
# relative error by Remez exchange, 3.1e-9 before rounding.
C2 = 0.499999934125
C3 = 0.166665201078
C4 = 0.0416683942109
C5 = 0.00836878041118
C6 = 0.00138144670593

# log(1 + u) = 2 (s + s^3 / 3 + s^5 / 5 + ... ) with s = u / (2 + u); on 0 <= u <= 1 what is left
# out after s^15 / 15 is below 2e-9 of it.
INFINITY = float("inf")


@device
def exp(x):
    """e^x within 1 ulp; below -104 it is 0, from 88.73 infinity, and NaN stays."""
    x = clamp(x, like(x, -106.0), like(x, 89.0))
    shifted = fma(x, like(x, LOG2_E), like(x, MAGIC))  # the nearest integer, in the low bits
    n = sub(shifted, like(x, MAGIC))
    r = fma(n, like(x, -LN2_HIGH), x)
    r = fma(n, like(x, -LN2_LOW), r)
    p = fma(like(x, C6), r, like(x, C5))
    p = fma(p, r, like(x, C4))
    p = fma(p, r, like(x, C3))
    p = fma(p, r, like(x, C2))
    p = fma(p, r, like(x, 1.0))
    p = fma(p, r, like(x, 1.0))
    return pow2_scale(p, shifted)


@device
def rsqrt(x):
    """1 / sqrt(x), both correctly rounded."""
    return div(like(x, 1.0), sqrt(x))


@device
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return div(like(x, 1.0), add(like(x, 1.0), exp(sub(like(x, 0.0), x))))


@device
def silu(x):
    """SiLU: x / (1 + e^-x)."""
    return div(x, add(like(x, 1.0), exp(sub(like(x, 0.0), x))))


@device
def silu_mul1(gate, up):
    """silu(gate), rounded to bf16, times up; both operands are bf16 values."""
    return mul(round_bf16(silu(gate)), up)


@device
def sigmoid_mul1(gate, x):
    """sigmoid(gate), rounded to bf16, times x; both operands are bf16 values."""
    return mul(round_bf16(sigmoid(gate)), x)


@device
def _log1p(u):
    """log(1 + u) for 0 <= u <= 1."""
    s = div(u, add(like(u, 2.0), u))
    square = mul(s, s)
    p = like(u, 1.0 / 15.0)
    p = fma(p, square, like(u, 1.0 / 13.0))
    p = fma(p, square, like(u, 1.0 / 11.0))
    p = fma(p, square, like(u, 1.0 / 9.0))
    p = fma(p, square, like(u, 1.0 / 7.0))
    p = fma(p, square, like(u, 1.0 / 5.0))
    p = fma(p, square, like(u, 1.0 / 3.0))
    double = add(s, s)
    return fma(mul(double, square), p, double)


@device
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which overflows nowhere; NaN stays."""
    infinity = like(x, INFINITY)
    top = clamp(x, like(x, 0.0), infinity)
    below = clamp(x, sub(like(x, 0.0), infinity), like(x, 0.0))
    minus_absolute = sub(below, top)
    return add(top, _log1p(exp(minus_absolute)))


@device
def decay1(a_log, a, dt_bias):
    """The logarithm of a state's decay, -e^A_log softplus(a + dt_bias), in float32."""
    return mul(sub(like(a, 0.0), exp(a_log)), softplus(add(a, dt_bias)))


@device
def add1(a, b):
    """The sum of two bf16 values, not yet rounded."""
    return add(a, b)


@device
def normed1(x, inverse, weight):
    """The normalised value x * inverse, rounded to bf16, times weight."""
    return mul(round_bf16(mul(x, inverse)), weight)


@device
def normed_one_plus1(x, inverse, weight):
    """The normalised value x * inverse times 1 + weight, all in float32."""
    return mul(mul(x, inverse), add(like(weight, 1.0), weight))


@device
def gated1(x, inverse, weight, gate):
    """`normed1`, rounded to bf16, times silu(gate) in float32."""
    return mul(round_bf16(normed1(x, inverse, weight)), silu(gate))


@device
def rotate_low(a, b, cos, sin):
    """The first half of a rotated pair (a, b)."""
    return sub(mul(a, cos), mul(b, sin))


@device
def rotate_high(a, b, cos, sin):
    """The second half of a rotated pair (a, b)."""
    return add(mul(b, cos), mul(a, sin))
