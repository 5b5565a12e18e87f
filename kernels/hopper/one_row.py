"""Linear layers of one row without the tensor core: each program streams its share of the weights.

Numerics: not those of dot.py. An output's products are added by fma, each thread its own elements
in order of k, then over the threads that share the output; the bias is added in float32, one
rounding to bf16. Tensor-core steps come one after another along the whole of k, which a small
matrix waits for; these chains are as long as there are stages.

As in stream.py the first weights are asked for before the wait for the launch before. The row is
laid in shared memory once; with a norm before, its elements times their weights are, and 1 / RMS is
applied to the sums, so that no product waits for it.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from .check import DEVICE
from .jit import shared_device, shared_kernel
from .launch import bind
from .linears import Linears, is_aligned, three
from .overlap import release, wait
from .scalar import round_bf16, rsqrt, silu_mul1
from .stream import ask, first_of, places_of, weighted
from .streams import Stream, one_row_stream, programs

__all__ = ["bind_one_row", "one_row_of"]

WARPS = 8
AT_ONCE = gl.constexpr(2048)
"""Elements of the row: eight of each thread."""


def one_row_of(linears: Linears) -> Stream | None:
    """How a launch of this kernel computes these; None where another is faster, or must."""
    rows, k = linears.x.shape
    if DEVICE != "cuda" or rows != 1 or not is_aligned(linears.x, *linears.weights):
        return None
    return one_row_stream(linears.n, k, paired=linears.silu)


@shared_device
def _elements(K: gl.constexpr, FORM: gl.constexpr):
    """Elements of the row that are taken at once: [AT_ONCE / K, K]."""
    line = gl.arange(0, AT_ONCE // K, layout=gl.SliceLayout(1, FORM))[:, None]
    return line * K + gl.arange(0, K, layout=gl.SliceLayout(0, FORM))[None, :]


@shared_device
def _norm_weights(norm_weight, k, K: gl.constexpr, CHUNKS: gl.constexpr, FORM: gl.constexpr):
    """The norm's weights, as `_laid_out` takes them."""
    found = ()
    for chunk in gl.static_range(CHUNKS):
        at = chunk * AT_ONCE + _elements(K, FORM)
        found = found + (gl.load(norm_weight + at, mask=at < k, other=0.0),)
    return found


@shared_device
def _laid_out(
    x, delta, weights, sum_out, xs, k, K: gl.constexpr, CHUNKS: gl.constexpr,
    NORM: gl.constexpr, ONE_PLUS: gl.constexpr, FORM: gl.constexpr,
):  # fmt: skip
    """The row, or its norm without 1 / RMS, in shared memory; its squares, float32 of AT_ONCE."""
    place = _elements(K, FORM)
    squares = gl.zeros([AT_ONCE // K, K], gl.float32, layout=FORM)
    values = ()
    for chunk in gl.static_range(CHUNKS):
        at = chunk * AT_ONCE + place
        here = at < k
        value = gl.load(x + at, mask=here, other=0.0)
        if NORM:
            added = gl.load(delta + at, mask=here, other=0.0)
            total, value = weighted(value, added, weights[chunk], ONE_PLUS)
            squares = gl.fma(total, total, squares)
            mine = here & (gl.program_id(0) == 0)
            gl.store(sum_out + at, total.to(gl.bfloat16), mask=mine)
        values = values + (value,)
    for chunk in gl.static_range(CHUNKS):
        xs.index(chunk).store(values[chunk])
    return squares


@shared_device
def _biased(total, bias, o, n, HAS: gl.constexpr):
    if HAS:
        total = total + gl.load(bias + o, mask=(o >= 0) & (o < n), other=0.0).to(gl.float32)
    return total


@shared_device
def _put(total, bias, y, o, n, HAS: gl.constexpr):
    """Outputs o of y [n], those that it has."""
    value = _biased(total, bias, o, n, HAS)
    gl.store(y + o, value.to(gl.bfloat16), mask=(o >= 0) & (o < n))


@shared_kernel
def _one_row(
    x, w, to_k, to_v, q_bias, k_bias, v_bias, added, q_out, k_out, v_out, norm_weight, sum_out, eps,
    q_n, k_n, v_n, k, M: gl.constexpr, K: gl.constexpr, S: gl.constexpr, CHUNKS: gl.constexpr,
    PARTS: gl.constexpr, Q_BIAS: gl.constexpr, K_BIAS: gl.constexpr, V_BIAS: gl.constexpr,
    SILU: gl.constexpr, NORM: gl.constexpr, ONE_PLUS: gl.constexpr,
):  # fmt: skip
    """W is q's matrix (or the only one); to_k and to_v lead from it to the others', in elements.

    NORM: `added` is added to the stream x, sum_out receives the sum.
    """
    release()
    ACROSS: gl.constexpr = K // 8
    COUNT: gl.constexpr = gl.num_warps()
    form: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [COUNT, 1], [1, 0])
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    n = q_n + k_n + v_n
    first, count = first_of(n)
    at = gl.arange(0, M, layout=gl.SliceLayout(1, form))
    held = (at < count)[:, None]
    places = places_of(first, q_n, k_n, to_k, to_v, k, M, K, PARTS, form)
    second = n.to(gl.int64) * k
    ws = gl.allocate_shared_memory(gl.bfloat16, [S, M, K], flat)
    others = ws
    if SILU:
        others = gl.allocate_shared_memory(gl.bfloat16, [S, M, K], flat)
    LINES: gl.constexpr = AT_ONCE // K
    parts = gl.allocate_shared_memory(gl.bfloat16, [CHUNKS, LINES, K], flat)
    xs = parts._reinterpret(gl.bfloat16, [CHUNKS * LINES, 1, K], flat)
    steps = k // K
    for stage in gl.static_range(S - 1):
        here = held & (stage < steps)
        ask(w, second, places + stage * K, ws.index(stage), others.index(stage), here, SILU)
        async_copy.commit_group()
    o = gl.where(at < count, first + at, n)
    weights = ()
    if NORM:
        weights = _norm_weights(norm_weight, k, K, CHUNKS, form)
    wait()
    squares = _laid_out(
        x, added, weights, sum_out, parts, k, K, CHUNKS, NORM, ONE_PLUS, form
    )  # fmt: skip
    sums = gl.zeros([M, K], gl.float32, layout=form)
    more = gl.zeros([M, K], gl.float32, layout=form)
    for step in range(steps):
        full = step % S
        async_copy.wait_group(S - 2)
        gl.thread_barrier()
        # The stage of the turn before, which all have left.
        ahead = step + S - 1
        free = ahead % S
        wanted = held & (ahead < steps)
        ask(w, second, places + ahead * K, ws.index(free), others.index(free), wanted, SILU)
        async_copy.commit_group()
        value = gl.broadcast(xs.index(step).load(form).to(gl.float32), sums)[0]
        sums = gl.fma(ws.index(full).load(form).to(gl.float32), value, sums)
        if SILU:
            more = gl.fma(others.index(full).load(form).to(gl.float32), value, more)
    total, other = gl.sum(sums, 1), gl.sum(more, 1)
    if NORM:
        inverse = rsqrt(gl.sum(gl.sum(squares, 1), 0) / k + eps)
        total, other = total * inverse, other * inverse
    if SILU:
        gate, up = _biased(total, q_bias, o, n, Q_BIAS), _biased(other, q_bias + n, o, n, Q_BIAS)
        _put(silu_mul1(round_bf16(gate), round_bf16(up)), q_bias, q_out, o, n, False)
    else:
        _put(total, q_bias, q_out, o, q_n, Q_BIAS)
        if PARTS == 3:
            _put(total, k_bias, k_out, o - q_n, k_n, K_BIAS)
            _put(total, v_bias, v_out, o - q_n - k_n, v_n, V_BIAS)


def bind_one_row(linears: Linears, stream: Stream) -> object:
    """The launch of matrices that `one_row_of` found a stream for."""
    k = linears.x.shape[1]
    norm = linears.norm
    places = [weight.data_ptr() for weight in linears.weights]
    leads = three([(place - places[0]) // 2 for place in places], 0)
    sizes = [y.shape[1] for y in linears.outputs]
    arguments = (
        linears.x,
        linears.weights[0],
        *leads[1:],
        *three([linears.x if bias is None else bias for bias in linears.biases], linears.x),
        linears.x if norm is None else norm.delta,
        *three(linears.outputs, linears.x),
        linears.x if norm is None else norm.weight,
        linears.x if norm is None else norm.total,
        0.0 if norm is None else norm.eps,
        *three(sizes, 0),
        k,
        stream.outputs,
        stream.k,
        stream.stages,
        -(-k // AT_ONCE.value),
        len(sizes),
        *three([bias is not None for bias in linears.biases], False),
        linears.silu,
        norm is not None,
        norm is not None and norm.one_plus,
    )
    grid = (programs(linears.n, stream.outputs),)
    return bind(_one_row, grid, arguments, WARPS, kept=linears)
