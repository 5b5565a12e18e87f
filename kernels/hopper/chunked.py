"""The gated delta rule in chunks of 64 rows, for prefill: products of matrices, not row after row.

With S the state before a chunk and g_i the sum of its decays up to row i, the recurrence of
delta.py is (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024; Yang et al.: Parallelizing Linear
Transformers with the Delta Rule, 2024)

    u_i = beta_i (v_i - e^(g_i) S^T k_i - sum over j < i of e^(g_i - g_j) (k_i . k_j) u_j)
    y_i = e^(g_i) S^T q_i + sum over j <= i of e^(g_i - g_j) (q_i . k_j) u_j, with q times scale
    S'  = e^(g_last) S + sum over j of e^(g_last - g_j) k_j u_j^T

The first line is a unit lower triangular system, (I + A) U = R, which the inverse of I + A solves.

Numerics: not those of delta.py. State and sums are float32; products are of float32 in three of
TF32 (about 2^-22 of a product is lost). Sums of decays and their differences are float64, and only
e^(what is not above 0) is taken, so that a strong decay neither overflows nor takes digits from a
later one.

A chunk begins 64 c rows behind the first of its run: neighbouring rows of one slot in one call. So
calls that cut a prompt at multiples of 64 work on the same chunks. The rows of a shorter chunk have
the bits that they have with more rows behind them: what stands for absent rows is zero, the
matrices are triangular, and one program is compiled whatever the number of rows. But an infinity or
NaN in a row reaches earlier rows of its chunk, as 0 * NaN.
"""

from __future__ import annotations

import torch
import triton.language as tl

from .check import disjoint, f32, i32, matrix
from .delta import value_dim
from .jit import device, kernel
from .launch import bind
from .overlap import wait
from .scalar import exp
from .sums import power_of_two

__all__ = ["gdn_chunked"]

CHUNK = tl.constexpr(64)
SOLVED = tl.constexpr(8)
"""Rows of the blocks that are inverted row by row; larger ones are joined of these."""
FIRST, LEVELS = tl.constexpr(3), tl.constexpr(6)
"""2^FIRST is SOLVED, and 2^LEVELS CHUNK."""
ALL_GONE = tl.constexpr(-110.0)
"""e^this is 0 in float32, and so is e^less: no sum needs a lower one."""
SCANNED = tl.constexpr(1024)
"""Slots that are looked at together for the end of a run."""

LEAST, MOST_KEYS, MOST_VALUES = 16, 128, 64
"""A product's least size; the largest dim of k, whose tiles fit in shared memory, each split; the
columns of a state that a program holds."""
WARPS, STAGES = 4, 1
"""Nothing is loaded ahead: shared memory is full."""


@device
def _split(x):
    """Into a TF32 number and the rest, which is one but for its last bit."""
    bits = x.to(tl.int32, bitcast=True)
    high = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return high, x - high


@device
def _product(a, b, total):
    """In float32 total + a @ b, the product of the two rests left out."""
    a_high, a_rest = _split(a)
    b_high, b_rest = _split(b)
    total = tl.dot(a_rest, b_high, total, input_precision="tf32")
    total = tl.dot(a_high, b_rest, total, input_precision="tf32")
    return tl.dot(a_high, b_high, total, input_precision="tf32")


@device
def _inverse(a):
    """(I + a)^-1 of a strictly lower triangular a [CHUNK, CHUNK].

    Blocks on the diagonal by forward substitution, all at once; then pairs of blocks are joined:
    of [[T^-1, 0], [L, U^-1]] the lower left is -U L T. No power of a is taken, which could grow.
    """
    i, j = tl.arange(0, CHUNK)[:, None], tl.arange(0, CHUNK)[None, :]
    inside = i // SOLVED == j // SOLVED
    t, nothing = tl.where(i == j, 1.0, 0.0), tl.zeros((CHUNK, CHUNK), tl.float32)
    transposed = tl.where(inside, tl.trans(a), 0.0)
    for n in range(1, SOLVED):
        left = tl.sum(tl.where(j % SOLVED == n, transposed, 0.0), 1)
        sums = tl.sum(left[:, None] * t, 0)
        t = tl.where(inside & (i % SOLVED == n), t - sums[None, :], t)
    for level in range(FIRST, LEVELS):
        paired = (i >> (level + 1)) == (j >> (level + 1))
        below = tl.where(paired & ((i >> level) > (j >> level)), a, 0.0)
        t = t - _product(_product(t, below, nothing), t, nothing)
    return t


@device
def _run_stop(slots, start, rows, slot):
    """The row behind the run that begins at `start`."""
    stop, at = rows, start
    while at < stop:
        i = at + tl.arange(0, SCANNED)
        other = tl.load(slots + i, mask=i < rows, other=slot) != slot
        stop = tl.minimum(stop, tl.min(tl.where(other, i, rows)))
        at += SCANNED
    return stop


@device
def _columns(x, here, width, first, DIM: tl.constexpr, N: tl.constexpr):
    """Columns `first` .. first + N of a head's DIM, in the rows of a chunk that are `here`."""
    i = first + tl.arange(0, N)
    c = tl.arange(0, CHUNK).to(tl.int64)[:, None]
    return tl.load(x + c * width + i[None, :], mask=here[:, None] & (i < DIM)[None, :], other=0.0)


@device
def _chunk(
    qkv, decay, beta, y, top, bottom, start, stop, head, first, heads, k_heads, scale,
    DK: tl.constexpr, DV: tl.constexpr, H: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """The state behind the rows start .. min(start + CHUNK, stop); writes their y.

    The state is two blocks [H, V]: products over all of k at once would need too many registers.
    """
    c, j = tl.arange(0, CHUNK), first + tl.arange(0, V)
    r = start + c
    here, wide = r < stop, r.to(tl.int64)
    at = wide * heads + head
    strength = tl.load(beta + at, mask=here, other=0.0)[:, None]
    kept = tl.load(decay + at, mask=here, other=0.0)
    g = tl.cumsum(tl.where(kept < ALL_GONE, ALL_GONE, kept).to(tl.float64), 0)
    last = tl.sum(tl.where(c == CHUNK - 1, g, 0.0), 0)
    from_start, to_end = exp(g.to(tl.float32))[:, None], exp((last - g).to(tl.float32))[:, None]
    behind = c[:, None] >= c[None, :]
    between = exp(tl.where(behind, g[:, None] - g[None, :], 0.0).to(tl.float32))

    keys = k_heads * DK
    width = 2 * keys + heads * DV
    base = qkv + start.to(tl.int64) * width
    q_at = base + head * k_heads // heads * DK
    k_at, v_at = q_at + keys, base + 2 * keys + head * DV
    square, tall = tl.zeros((CHUNK, CHUNK), tl.float32), tl.zeros((CHUNK, V), tl.float32)
    k = _columns(k_at, here, width, 0, DK, H)
    a, held = _product(k, tl.trans(k), square), _product(k, top, tall)
    k = _columns(k_at, here, width, H, DK, H)
    a, held = _product(k, tl.trans(k), a), _product(k, bottom, held)
    t = _inverse(tl.where(c[:, None] > c[None, :], strength * (a * between), 0.0))
    v = _columns(v_at, here, width, first, DV, V)
    u = _product(t, strength * (v - from_start * held), tall)

    q = _columns(q_at, here, width, 0, DK, H) * scale
    k = _columns(k_at, here, width, 0, DK, H)
    seen, core = _product(q, tl.trans(k), square), _product(q, top, tall)
    left, all_kept = to_end * u, exp(last.to(tl.float32))
    top = _product(tl.trans(k), left, top * all_kept)
    q = _columns(q_at, here, width, H, DK, H) * scale
    k = _columns(k_at, here, width, H, DK, H)
    seen, core = _product(q, tl.trans(k), seen), _product(q, bottom, core)
    bottom = _product(tl.trans(k), left, bottom * all_kept)
    core = _product(tl.where(behind, seen * between, 0.0), u, from_start * core)
    tl.store(y + at[:, None] * DV + j[None, :], core, mask=here[:, None] & (j < DV)[None, :])
    return top, bottom


@kernel(do_not_specialize=("rows",))
def _chunked(
    qkv, decay, beta, h, slots, y, rows, heads, k_heads, slot_count, scale, DK: tl.constexpr,
    DV: tl.constexpr, H: tl.constexpr, V: tl.constexpr,
):  # fmt: skip
    """Columns `first` .. of one head, through all runs in turn."""
    wait()
    head, first = tl.program_id(0), tl.program_id(1) * V
    i, j = tl.arange(0, H)[:, None], first + tl.arange(0, V)
    in_top, in_bottom = (i < DK) & (j < DV)[None, :], (i + H < DK) & (j < DV)[None, :]
    start = tl.program_id(0) * 0
    while start < rows:
        slot = tl.load(slots + start)
        stop = _run_stop(slots, start, rows, slot)
        r = start
        if (slot < 0) | (slot >= slot_count):
            while r < stop:
                at = (tl.cast(r, tl.int64) * heads + head) * DV + j
                tl.store(y + at, float("nan"), mask=j < DV)
                r += 1
        else:
            place = h + (slot.to(tl.int64) * heads + head) * DK * DV + i * DV + j[None, :]
            top = tl.load(place, mask=in_top, other=0.0)
            bottom = tl.load(place + H * DV, mask=in_bottom, other=0.0)
            while r < stop:
                top, bottom = _chunk(
                    qkv, decay, beta, y, top, bottom, r, stop, head, first, heads, k_heads,
                    scale, DK, DV, H, V,
                )  # fmt: skip
                r += CHUNK
            tl.store(place, top, mask=in_top)
            tl.store(place + H * DV, bottom, mask=in_bottom)
            # A later run of this slot loads what other threads stored.
            tl.debug_barrier()
        start = stop


def gdn_chunked(
    *,
    qkv: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    h: torch.Tensor,
    slots: torch.Tensor,
    y: torch.Tensor,
    k_heads: int,
    k_dim: int,
    scale: float,
) -> object:
    """Each row through its slot's states, one a value head; heads share k and q in groups.

    qkv: f32 [rows, 2 k_heads * k_dim + heads * dv]; decay (a logarithm, not above 0), beta: f32
    [rows, heads]; h: f32 [slots, heads * k_dim * dv]; slots: i32 [rows]; y: f32 [rows, heads * dv].
    Rows of several slots may stand in any order; each run of neighbours is chunked by itself, so
    that rows which change slots all the time gain nothing. A row whose slot is outside h gives NaN
    and changes no state. No row leaves its state behind for a rollback: a prefill has none.
    """
    (rows, heads), dk, dv = matrix("decay", decay), k_dim, value_dim(qkv, decay, y, k_heads, k_dim)
    if dk > MOST_KEYS:
        raise ValueError(f"heads of {dk} for k: at most {MOST_KEYS} go through in chunks")
    slot_count = matrix("h", h)[0]
    disjoint({"h": h, "y": y}, {"qkv": qkv, "decay": decay, "beta": beta, "slots": slots})
    half = power_of_two(dk, 2 * LEAST) // 2
    values = min(power_of_two(dv, LEAST), MOST_VALUES)
    arguments = (
        f32("qkv", qkv, (rows, 2 * k_heads * dk + heads * dv)),
        f32("decay", decay, (rows, heads)),
        f32("beta", beta, (rows, heads)),
        f32("h", h, (slot_count, heads * dk * dv)),
        i32("slots", slots, (rows,)),
        f32("y", y, (rows, heads * dv)),
        rows,
        heads,
        k_heads,
        slot_count,
        float(scale),
        dk,
        dv,
        half,
        values,
    )
    return bind(_chunked, (heads, -(-dv // values)), arguments, warps=WARPS, stages=STAGES)
