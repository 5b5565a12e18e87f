"""Linear layers of few rows: each program streams its share of the weights through shared memory.

Numerics: those of dot.py and linear.py, the same chain of tensor-core steps along k. Behind a norm
(row_linears.py): its weights before the products, 1 / RMS behind them.

The outputs are dealt evenly to all multiprocessors, all programs run at once, and a program asks
for its first weights before it waits for the launch before: no launch writes weights. So memory is
busy while one launch ends and the next one begins. What is shared is laid out by hand, which takes
Triton's Gluon.
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma

from .check import DEVICE
from .jit import shared_device, shared_kernel
from .launch import bind
from .linears import Linears, is_aligned, three
from .overlap import release, wait
from .scalar import decay1, round_bf16, rsqrt, sigmoid, silu_mul1
from .streams import MOST_ROWS, Stream, programs, stream_for
from .sums import power_of_two

__all__ = ["ask", "bind_stream", "first_of", "places_of", "stream_of", "weighted"]


def stream_of(linears: Linears) -> Stream | None:
    """How these stream; None where other tiles are better, or must be."""
    rows, k = linears.x.shape
    if DEVICE != "cuda" or rows > MOST_ROWS or not is_aligned(linears.x, *linears.weights):
        return None
    return stream_for(rows, linears.n, k, paired=linears.silu or bool(linears.gates))


@shared_device
def ask(w, second, at, shared, other, held, TWO: gl.constexpr):
    """One stage's weights."""
    async_copy.async_copy_global_to_shared(shared, w + at, mask=held)
    if TWO:
        async_copy.async_copy_global_to_shared(other, w + second + at, mask=held)


@shared_device
def first_of(n):
    """A program's first output and how many it has: n / programs, or one more."""
    first = gl.program_id(0) * n // gl.num_programs(0)
    return first, (gl.program_id(0) + 1) * n // gl.num_programs(0) - first


@shared_device
def places_of(first, q_n, k_n, to_k, to_v, k, M: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr,
              LOADS: gl.constexpr):  # fmt: skip
    """Elements from w to each output's first weights of a stage: int64 [M, K]."""
    o = (first + gl.arange(0, M, layout=gl.SliceLayout(1, LOADS))).to(gl.int64)
    at = o * k
    if PARTS == 3:
        lead = gl.where(o < q_n + k_n, to_k - q_n * k, to_v - (q_n + k_n) * k)
        at += gl.where(o < q_n, 0, lead)
    at = gl.multiple_of(at, 8)
    return at[:, None] + gl.arange(0, K, layout=gl.SliceLayout(0, LOADS))[None, :]


@shared_device
def _parts(stream, delta, weight, rows, k, step, j, i, K: gl.constexpr):
    """A step's stream, what is added to it, and its norm's weights."""
    here = step * K + i < k
    at = j * k + step * K + i
    held = (j < rows) & here
    return (
        gl.load(stream + at, mask=held, other=0.0),
        gl.load(delta + at, mask=held, other=0.0),
        gl.load(weight + step * K + i, mask=here, other=0.0),
    )


@shared_device
def weighted(stream, delta, weight, ONE_PLUS: gl.constexpr):
    """A residual add's rounded sum, and its values times the weights of their norm as bf16."""
    value = round_bf16(stream.to(gl.float32) + delta.to(gl.float32))
    w = weight.to(gl.float32)
    if ONE_PLUS:
        w = w + 1.0
    return value, (value * w).to(gl.bfloat16)


@shared_device
def _biased(total, bias, o, here, HAS: gl.constexpr):
    if HAS:
        total = total + gl.load(bias + o, mask=here, other=0.0).to(gl.float32)
    return total


@shared_device
def _put(total, bias, y, o, r, n, rows, HAS: gl.constexpr):
    """Outputs o of y [rows, n], those that it has."""
    here = (o >= 0) & (o < n)
    total = _biased(total, bias, o, here, HAS)
    gl.store(y + r.to(gl.int64) * n + o, total.to(gl.bfloat16), mask=here & (r < rows))


@shared_device
def _product(shared, x_shared, total, WARPGROUP: gl.constexpr):
    """Total + what a stage of weights and of x add."""
    if WARPGROUP:
        total = warpgroup_mma(shared, x_shared.permute([1, 0]), total)
    else:
        layout: gl.constexpr = total.type.layout
        w = shared.load(gl.DotOperandLayout(0, layout, 2))
        x = x_shared.permute([1, 0]).load(gl.DotOperandLayout(1, layout, 2))
        total = mma_v2(w, x, total)
    return total


@shared_kernel
def _streamed(
    x, w, to_k, to_v, q_bias, k_bias, v_bias, residual, q_out, k_out, v_out, norm_weight, sum_out,
    eps, rows, q_n, k_n, v_n, k, M: gl.constexpr, R: gl.constexpr, K: gl.constexpr,
    S: gl.constexpr, WARPGROUP: gl.constexpr,
    PARTS: gl.constexpr, Q_BIAS: gl.constexpr, K_BIAS: gl.constexpr, V_BIAS: gl.constexpr,
    ADDS: gl.constexpr, SILU: gl.constexpr, GATES: gl.constexpr,
    NORM: gl.constexpr, ONE_PLUS: gl.constexpr, ASKS_FIRST: gl.constexpr,
):  # fmt: skip
    """W is q's matrix (or the only one); to_k and to_v lead from it to the others', in elements.

    NORM: residual is added to x, sum_out receives the sum, and its norm is what is multiplied: its
    elements times their weights are, and 1 / RMS is applied to the products.

    GATES: w is b above a, k_bias is a_log, v_bias dt_bias, q_out the decay, k_out beta.
    """
    release()
    PAIRED: gl.constexpr = SILU or GATES
    WARPS: gl.constexpr = gl.num_warps()
    ACROSS: gl.constexpr = min(K // 8, 32)
    loads: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [WARPS, 1], [1, 0])
    if WARPGROUP:
        mma: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, R, 16])
        w_form: gl.constexpr = gl.NVMMASharedLayout.get_default_for([M, K], gl.bfloat16)
        x_form: gl.constexpr = gl.NVMMASharedLayout.get_default_for([R, K], gl.bfloat16)
    else:
        mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
        w_form: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
        x_form: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 8, [1, 0])
    n = q_n + k_n + v_n
    first, count = first_of(n)
    held = (gl.arange(0, M, layout=gl.SliceLayout(1, loads)) < count)[:, None]
    places = places_of(first, q_n, k_n, to_k, to_v, k, M, K, PARTS, loads)
    second = n.to(gl.int64) * k
    ws = gl.allocate_shared_memory(gl.bfloat16, [S, M, K], w_form)
    others = ws
    if PAIRED:
        others = gl.allocate_shared_memory(gl.bfloat16, [S, M, K], w_form)
    xs = gl.allocate_shared_memory(gl.bfloat16, [S, R, K], x_form)
    steps = k // K
    for stage in gl.static_range(S - 1):
        here = held & (stage < steps)
        ask(w, second, places + stage * K, ws.index(stage), others.index(stage), here, PAIRED)
        async_copy.commit_group()
    j = gl.arange(0, R, layout=gl.SliceLayout(1, loads))[:, None]
    x_at = x + j * k + gl.arange(0, K, layout=gl.SliceLayout(0, loads))[None, :]
    total = gl.zeros([M, R], gl.float32, layout=mma)
    other = gl.zeros([M, R], gl.float32, layout=mma)
    wait()
    squares = gl.zeros([R, K], gl.float32, layout=loads)
    i = gl.arange(0, K, layout=gl.SliceLayout(0, loads))[None, :]
    if NORM:
        stream, delta, weights = _parts(x, residual, norm_weight, rows, k, 0, j, i, K)
    else:
        for stage in gl.static_range(S - 1):
            here = (j < rows) & (stage < steps)
            async_copy.async_copy_global_to_shared(xs.index(stage), x_at + stage * K, mask=here)
        # Empty groups: so that the first turn too finds all but the last S - 2 complete.
        for _ in gl.static_range(S - 1):
            async_copy.commit_group()
    for step in range(steps):
        full = step % S
        if NORM:
            added, values = weighted(stream, delta, weights, ONE_PLUS)
            squares = gl.fma(added, added, squares)
            mine = (j < rows) & (gl.program_id(0) == 0)
            gl.store(sum_out + j * k + step * K + i, added.to(gl.bfloat16), mask=mine)
            xs.index(full).store(values)
            stream, delta, weights = _parts(x, residual, norm_weight, rows, k, step + 1, j, i, K)
        async_copy.wait_group(S - 2)
        if WARPGROUP:
            fence_async_shared()
        gl.thread_barrier()
        if not ASKS_FIRST:
            total = _product(ws.index(full), xs.index(full), total, WARPGROUP)
            if PAIRED:
                other = _product(others.index(full), xs.index(full), other, WARPGROUP)
        # Into the stage of the turn before, which all have left.
        ahead = step + S - 1
        free = ahead % S
        here = held & (ahead < steps)
        ask(w, second, places + ahead * K, ws.index(free), others.index(free), here, PAIRED)
        if not NORM:
            here = (j < rows) & (ahead < steps)
            async_copy.async_copy_global_to_shared(xs.index(free), x_at + ahead * K, mask=here)
        async_copy.commit_group()
        if ASKS_FIRST:
            total = _product(ws.index(full), xs.index(full), total, WARPGROUP)
            if PAIRED:
                other = _product(others.index(full), xs.index(full), other, WARPGROUP)
    if NORM:
        inverse = rsqrt(gl.sum(squares, 1) / k + eps)
        inverse = gl.convert_layout(inverse, gl.SliceLayout(0, mma))[None, :]
        total, other = total * inverse, other * inverse
    o = gl.arange(0, M, layout=gl.SliceLayout(1, mma))[:, None]
    r = gl.arange(0, R, layout=gl.SliceLayout(0, mma))[None, :]
    o = gl.where(o < count, first + o, n)
    if GATES:
        log = gl.load(k_bias + o, mask=o < n, other=0.0).to(gl.float32)
        shift = gl.load(v_bias + o, mask=o < n, other=0.0).to(gl.float32)
        here = (o < n) & (r < rows)
        gl.store(q_out + r * n + o, decay1(log, round_bf16(other), shift), mask=here)
        gl.store(k_out + r * n + o, sigmoid(round_bf16(total)), mask=here)
    elif SILU:
        total = _biased(total, q_bias, o, o < n, Q_BIAS)
        other = _biased(other, q_bias + n, o, o < n, Q_BIAS)
        total = silu_mul1(round_bf16(total), round_bf16(other))
        _put(total, q_bias, q_out, o, r, n, rows, False)
    elif ADDS:
        total = _biased(total, q_bias, o, o < n, Q_BIAS)
        here = (o < n) & (r < rows)
        added = gl.load(residual + r.to(gl.int64) * n + o, mask=here, other=0.0).to(gl.float32)
        _put(added + round_bf16(total), q_bias, q_out, o, r, n, rows, False)
    else:
        _put(total, q_bias, q_out, o, r, q_n, rows, Q_BIAS)
        if PARTS == 3:
            _put(total, k_bias, k_out, o - q_n, r, k_n, rows, K_BIAS)
            _put(total, v_bias, v_out, o - q_n - k_n, r, v_n, rows, V_BIAS)


def bind_stream(linears: Linears, stream: Stream) -> object:
    """The launch of matrices that `stream_for` found a stream for."""
    rows, k = linears.x.shape
    norm = linears.norm
    added = linears.residual if norm is None else norm.delta
    places = [weight.data_ptr() for weight in linears.weights]
    leads = three([(place - places[0]) // 2 for place in places], 0)
    sizes = [linears.n] if linears.gates else [y.shape[1] for y in linears.outputs]
    biases = (None, *linears.gates) if linears.gates else linears.biases
    arguments = (
        linears.x,
        linears.weights[0],
        *leads[1:],
        *three([linears.x if bias is None else bias for bias in biases], linears.x),
        linears.x if added is None else added,
        *three(linears.outputs, linears.x),
        linears.x if norm is None else norm.weight,
        linears.x if norm is None else norm.total,
        0.0 if norm is None else norm.eps,
        rows,
        *three(sizes, 0),
        k,
        stream.outputs,
        power_of_two(rows, 8),
        stream.k,
        stream.stages,
        stream.warpgroup,
        len(sizes),
        *three([bias is not None for bias in linears.biases], False),
        linears.residual is not None,
        linears.silu,
        bool(linears.gates),
        norm is not None,
        norm is not None and norm.one_plus,
        not stream.small,
    )
    grid = (programs(linears.n, stream.outputs),)
    return bind(_streamed, grid, arguments, stream.warps, kept=linears)
