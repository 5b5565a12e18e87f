"""Per-element functions in float32, of one value or of a block.

Fused and unfused kernels call the same ones, and `round_bf16` stands wherever an unfused chain
would have stored.
"""

from __future__ import annotations

import triton.language as tl

from .jit import device

__all__ = [
    "decay1", "exp", "gated1", "normed1", "normed_formed1", "rotate_high", "rotate_low",
    "round_bf16", "rsqrt", "sigmoid", "sigmoid_mul1", "silu", "silu_mul1", "softplus",
]  # fmt: skip

MAGIC = tl.constexpr(12582912.0)  # 1.5 * 2^23: a float of this size has no fraction
MAGIC_BITS = tl.constexpr(0x4B400000)
LOG2_E = tl.constexpr(1.4426950408889634)
MINUS_LN2_HIGH = tl.constexpr(-0.6931471824645996)  # float32 nearest to ln 2
MINUS_LN2_LOW = tl.constexpr(1.904654323148236e-09)  # what that lacks
LOWEST = tl.constexpr(-106.0)
HIGHEST = tl.constexpr(89.0)

# exp(r) = 1 + r + r^2 (C2 + C3 r + C4 r^2 + C5 r^3 + C6 r^4) on |r| <= ln(2)/2: the minimax of the
# relative error by Remez exchange, 3.1e-9 before rounding.
C2 = tl.constexpr(0.499999934125)
C3 = tl.constexpr(0.166665201078)
C4 = tl.constexpr(0.0416683942109)
C5 = tl.constexpr(0.00836878041118)
C6 = tl.constexpr(0.00138144670593)

# log(1 + u) = 2 (s + s^3 / 3 + s^5 / 5 + ... ) with s = u / (2 + u); on 0 <= u <= 1 what is left
# out after s^15 / 15 is below 2e-9 of it.
L3 = tl.constexpr(1.0 / 3.0)
L5 = tl.constexpr(1.0 / 5.0)
L7 = tl.constexpr(1.0 / 7.0)
L9 = tl.constexpr(1.0 / 9.0)
L11 = tl.constexpr(1.0 / 11.0)
L13 = tl.constexpr(1.0 / 13.0)
L15 = tl.constexpr(1.0 / 15.0)


@device
def round_bf16(x):
    """The float of the nearest bf16, ties to even."""
    return x.to(tl.bfloat16).to(tl.float32)


@device
def _power_of_two(n):
    """2^n as a float, -126 <= n <= 127."""
    return ((n + 127) << 23).to(tl.float32, bitcast=True)


@device
def exp(x):
    """e^x within 1 ulp; below -104 it is 0, from 88.73 infinity, and NaN stays."""
    x = tl.where(x < LOWEST, LOWEST, x)
    x = tl.where(x > HIGHEST, HIGHEST, x)
    shifted = tl.fma(x, LOG2_E, MAGIC)
    whole = shifted - MAGIC
    r = tl.fma(whole, MINUS_LN2_HIGH, x)
    r = tl.fma(whole, MINUS_LN2_LOW, r)
    p = tl.fma(r, C6, C5)
    p = tl.fma(p, r, C4)
    p = tl.fma(p, r, C3)
    p = tl.fma(p, r, C2)
    p = tl.fma(p, r, 1.0)
    p = tl.fma(p, r, 1.0)
    # In two factors: a power below the least normal float is none itself.
    n = shifted.to(tl.int32, bitcast=True) - MAGIC_BITS
    half = n >> 1
    return p * _power_of_two(half) * _power_of_two(n - half)


@device
def rsqrt(x):
    """1 / sqrt(x), both correctly rounded."""
    return tl.div_rn(1.0, tl.sqrt_rn(x))


@device
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return tl.div_rn(1.0, 1.0 + exp(0.0 - x))


@device
def silu(x):
    """SiLU: x / (1 + e^-x)."""
    return tl.div_rn(x, 1.0 + exp(0.0 - x))


@device
def silu_mul1(gate, up):
    """silu(gate), rounded to bf16, times up; both operands are bf16 values."""
    return round_bf16(silu(gate)) * up


@device
def sigmoid_mul1(gate, x):
    """sigmoid(gate), rounded to bf16, times x; both operands are bf16 values."""
    return round_bf16(sigmoid(gate)) * x


@device
def _log1p(u):
    """log(1 + u) for 0 <= u <= 1."""
    s = tl.div_rn(u, 2.0 + u)
    square = s * s
    p = tl.fma(square, L15, L13)
    p = tl.fma(p, square, L11)
    p = tl.fma(p, square, L9)
    p = tl.fma(p, square, L7)
    p = tl.fma(p, square, L5)
    p = tl.fma(p, square, L3)
    double = s + s
    return tl.fma(double * square, p, double)


@device
def softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + e^-|x|), which overflows nowhere; NaN stays."""
    top = tl.where(x < 0.0, 0.0, x)
    return top + _log1p(exp(0.0 - tl.abs(x)))


@device
def decay1(a_log, a, dt_bias):
    """The logarithm of a state's decay, -e^A_log softplus(a + dt_bias)."""
    return (0.0 - exp(a_log)) * softplus(a + dt_bias)


@device
def normed1(x, inverse, weight):
    """The normalised value x * inverse, rounded to bf16, times weight."""
    return round_bf16(x * inverse) * weight


@device
def normed_formed1(x, inverse, weight, ONE_PLUS: tl.constexpr):
    """`normed1`; or, one_plus: the normalised value times 1 + weight, all in float32."""
    if ONE_PLUS:
        value = (x * inverse) * (1.0 + weight)
    else:
        value = normed1(x, inverse, weight)
    return value


@device
def gated1(x, inverse, weight, gate):
    """`normed1`, rounded to bf16, times silu(gate) in float32."""
    return round_bf16(normed1(x, inverse, weight)) * silu(gate)


@device
def rotate_low(a, b, cos, sin):
    """The first half of a rotated pair (a, b)."""
    return a * cos - b * sin


@device
def rotate_high(a, b, cos, sin):
    """The second half of a rotated pair (a, b)."""
    return b * cos + a * sin
