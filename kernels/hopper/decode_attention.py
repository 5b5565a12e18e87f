"""Head norms, rotary positions, the KV write and attention in one launch: one row of a sequence.

For steps whose rows belong to different sequences: a row then attends to keys that earlier steps
wrote, and to its own. The earlier ones are asked for before the wait for the launch before: embed,
the first launch of a step, lets no other start before all of the step before is written.

Every program of a row norms and turns the query heads itself, as the row's key: each element also
norms the other one of its pair, so that none waits for another. The program of the row's own
position writes its key and value, and puts them in their place among the earlier ones.
"""

from __future__ import annotations

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2

from .attention import AT_ONCE, LEAST_TILE, SPLIT, WARPS, heads_of, merge
from .check import bf16, disjoint, f32, i32, matrix
from .jit import shared_device, shared_kernel
from .kv import pool_row
from .launch import bind
from .norm import is_one_plus
from .overlap import release, wait
from .rope import rotary_half
from .scalar import exp, normed_formed1, rotate_high, rotate_low, round_bf16, rsqrt
from .sums import lanes_for, power_of_two
from .workspace import counters, scratch

__all__ = ["norm_rope_attend"]

WHOLE_FROM = 128
"""Rows times kv heads from which on a row's splits are one program's: a multiprocessor each."""
SHARED_FROM = 256
"""Those from which on programs share a multiprocessor."""
TURNS_AHEAD = 2
"""Splits that a program with a multiprocessor to itself asks for ahead."""
MOST_HEAD_DIM = 256
"""A split's keys and values are held in shared memory."""
PATCH = gl.constexpr(8)
"""Rows of shared memory that are rewritten for one new row: the period of their swizzle."""


@shared_device
def _inverses(x, at, here, eps, ROWS: gl.constexpr, HEAD: gl.constexpr, LANES: gl.constexpr,
              FORM: gl.constexpr):  # fmt: skip
    """Of heads at x + at [ROWS], 1 / RMS: `inverse_rms` of norm.py, its lanes' tree written out."""
    sums = ()
    for chunk in gl.static_range(LANES // 32):
        squares = gl.zeros([ROWS, 32], gl.float32, layout=FORM)
        for start in gl.static_range(0, HEAD, LANES):
            i = start + 32 * chunk + gl.arange(0, 32, layout=gl.SliceLayout(0, FORM))
            held = here[:, None] & (i < HEAD)[None, :]
            value = gl.load(x + at[:, None] + i[None, :], mask=held, other=0.0).to(gl.float32)
            squares = gl.fma(value, value, squares)
        sums = sums + (gl.sum(squares, 1),)
    if LANES == 64:
        total = sums[0] + sums[1]
    else:
        total = sums[0]
    return rsqrt(gl.div_rn(total, gl.full_like(total, HEAD * 1.0)) + eps)


@shared_device
def _pair_of(d, HALF: gl.constexpr):
    """The element that turns with each."""
    return gl.where(d < HALF, d + HALF, gl.where(d < 2 * HALF, d - HALF, d))


@shared_device
def _norm_weights(weight, HALF: gl.constexpr, HEAD: gl.constexpr, FORM: gl.constexpr,
                  D: gl.constexpr):  # fmt: skip
    """Each element's weight, and that of the element that turns with it: float32 [1, D]."""
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))
    w = gl.load(weight + d, mask=d < HEAD, other=0.0).to(gl.float32)
    w_other = gl.load(weight + _pair_of(d, HALF), mask=d < HEAD, other=0.0).to(gl.float32)
    return w[None, :], w_other[None, :]


@shared_device
def _turned(
    x, first, step, heads, eps, w, w_other, cos, sin, ROWS: gl.constexpr, HALF: gl.constexpr,
    HEAD: gl.constexpr, LANES: gl.constexpr, ONE_PLUS: gl.constexpr, FORM: gl.constexpr,
    LANE_FORM: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Heads at x + first, x + first + step, ..., normed and turned: bf16 [ROWS, D], then zeros."""
    lane_rows = gl.arange(0, ROWS, layout=gl.SliceLayout(1, LANE_FORM))
    inverse = _inverses(
        x, first + lane_rows * step, lane_rows < heads, eps, ROWS, HEAD, LANES, LANE_FORM
    )
    inverse = gl.convert_layout(inverse, gl.SliceLayout(1, FORM))[:, None]
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, FORM))[:, None]
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))
    here = (row < heads) & (d < HEAD)[None, :]
    at = x + first + row * step
    value = gl.load(at + d[None, :], mask=here, other=0.0).to(gl.float32)
    other = gl.load(at + _pair_of(d, HALF)[None, :], mask=here, other=0.0).to(gl.float32)
    value = round_bf16(normed_formed1(value, inverse, w, ONE_PLUS))
    other = round_bf16(normed_formed1(other, inverse, w_other, ONE_PLUS))
    c, s = cos[None, :], sin[None, :]
    turned = gl.where((d < HALF)[None, :], rotate_low(value, other, c, s),
                      rotate_high(other, value, c, s))  # fmt: skip
    # What does not turn has a cosine that says whether the position is inside the tables.
    turned = gl.where((d < 2 * HALF)[None, :], turned, gl.where(c == c, value, float("nan")))
    return gl.where(here, turned, 0.0).to(gl.bfloat16)


@shared_device
def _angles(table, position, inside, HALF: gl.constexpr, FORM: gl.constexpr, D: gl.constexpr):
    """The cosine or sine of each element; NaN where the position is outside the tables."""
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))
    turns = d < 2 * HALF
    at = position.to(gl.int64) * HALF + gl.where(d < HALF, d, d - HALF)
    value = gl.load(table + at, mask=turns & inside, other=float("nan"))
    return gl.where(turns | (d < 0), value, gl.where(inside, 1.0, float("nan")))


@shared_device
def _ask(
    k_pool, v_pool, keys, values, table, token, stop, columns, pool_rows, kv_dim,
    SIZE: gl.constexpr, HEAD: gl.constexpr, FORM: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """Keys and values of tokens before `stop`; zeros for the others."""
    place = pool_row(table, token, columns, pool_rows, SIZE)
    place = gl.where(token < stop, place, -1)[:, None]
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))[None, :]
    held = (place >= 0) & (d < HEAD)
    at = place * kv_dim + d
    async_copy.async_copy_global_to_shared(keys, k_pool + at, mask=held)
    async_copy.async_copy_global_to_shared(values, v_pool + at, mask=held)


@shared_device
def _attended(q, keys, values, needed, lost, scale, G: gl.constexpr, MMA: gl.constexpr,
              SPLIT: gl.constexpr, D: gl.constexpr):  # fmt: skip
    """`_attend` of attention.py, with keys and values [SPLIT, D] in shared memory."""
    score = gl.zeros([G, SPLIT], gl.float32, layout=MMA)
    score = mma_v2(q, keys.permute([1, 0]).load(gl.DotOperandLayout(1, MMA, 2)), score) * scale
    score = gl.where(needed[None, :], score, float("-inf"))
    score = gl.where(lost[None, :], float("nan"), score)
    m = gl.max(score, 1)
    p = exp(score - m[:, None])
    acc = gl.zeros([G, D], gl.float32, layout=MMA)
    seen = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, MMA, 2))
    acc = mma_v2(seen, values.load(gl.DotOperandLayout(1, MMA, 2)), acc)
    return m, gl.sum(p, 1), acc


@shared_device
def _put(y, acc, sums, first, FORM: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
         HEAD: gl.constexpr, D: gl.constexpr):  # fmt: skip
    """A row's result for the query heads of one kv head, to y + first."""
    g = gl.arange(0, ROWS, layout=gl.SliceLayout(1, FORM))[:, None]
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))[None, :]
    value = gl.div_rn(acc, gl.broadcast(sums[:, None], acc)[0])
    gl.store(y + first + g * HEAD + d, value.to(gl.bfloat16), mask=(g < GROUP) & (d < HEAD))


@shared_device
def _merged(tops, parts, first, count, GROUP: gl.constexpr, FEW: gl.constexpr, HEAD: gl.constexpr,
            D: gl.constexpr, FORM: gl.constexpr, AT_ONCE: gl.constexpr):  # fmt: skip
    """What the parts of all splits give, from place `first` on: (sums [FEW], acc [FEW, D])."""
    g = gl.arange(0, FEW, layout=gl.SliceLayout(1, FORM))
    d = gl.arange(0, D, layout=gl.SliceLayout(0, FORM))
    inside = g[:, None] * HEAD + d[None, :]
    real = g < GROUP
    held = real[:, None] & (d < HEAD)[None, :]
    m = gl.full([FEW], float("-inf"), gl.float32, layout=gl.SliceLayout(1, FORM))
    sums = gl.zeros([FEW], gl.float32, layout=gl.SliceLayout(1, FORM))
    acc = gl.zeros([FEW, D], gl.float32, layout=FORM)
    for start in range(0, count, AT_ONCE):
        # Their loads wait for no sum. What is past the last changes nothing: e^-inf is 0.
        for inner in gl.static_range(AT_ONCE):
            at = first + start + inner
            there = start + inner < count
            tops_at = tops + at * 2 * GROUP + g
            m_next = gl.load(tops_at, mask=real & there, other=float("-inf"), cache_modifier=".cg")
            sums_next = gl.load(tops_at + GROUP, mask=real & there, other=0.0, cache_modifier=".cg")
            parts_at = parts + at * GROUP * HEAD + inside
            acc_next = gl.load(parts_at, mask=held & there, other=0.0, cache_modifier=".cg")
            m, sums, acc = merge(m, sums, acc, m_next, sums_next, acc_next)
    return sums, acc


@shared_kernel
def _new_rows(
    q, k, v, q_weight, k_weight, cos, sin, k_pool, v_pool, y, positions, table, tops, parts,
    arrived, limit, columns, pool_rows, kv_heads, q_eps, k_eps, scale, SIZE: gl.constexpr,
    SPLIT: gl.constexpr, GROUP: gl.constexpr, G: gl.constexpr, FEW: gl.constexpr,
    HALF: gl.constexpr, HEAD: gl.constexpr, D: gl.constexpr, LANES: gl.constexpr,
    Q_ONE: gl.constexpr, K_ONE: gl.constexpr, WHOLE: gl.constexpr, TURNS: gl.constexpr,
    AT_ONCE: gl.constexpr,
):  # fmt: skip
    """WHOLE: a program goes through all splits of its row; else through one."""
    release()
    WARPS: gl.constexpr = gl.num_warps()
    ACROSS: gl.constexpr = D // 8
    loads: gl.constexpr = gl.BlockedLayout([1, 8], [32 // ACROSS, ACROSS], [WARPS, 1], [1, 0])
    form: gl.constexpr = gl.BlockedLayout([1, max(D // 32, 1)], [1, 32], [WARPS, 1], [1, 0])
    lane_form: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS, 1], [1, 0])
    part_form: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [WARPS // 4, 4], [1, 0])
    mma: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, WARPS], [16, 8])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, max(1, 64 // D), min(8, D // 8), [1, 0])
    split, kv_head, row = gl.program_id(0), gl.program_id(1), gl.program_id(2).to(gl.int64)
    position, listed = gl.load(positions + row), table + row * columns
    inside = (position >= 0) & (position < limit)
    past = position >= columns * SIZE
    shift, kv_dim = kv_head * HEAD, kv_heads * HEAD
    first = split * SPLIT
    token = first + gl.arange(0, SPLIT, layout=gl.SliceLayout(1, loads))
    column = first + gl.arange(0, SPLIT, layout=gl.SliceLayout(0, mma))
    lost = pool_row(listed, column, columns, pool_rows, SIZE) < 0
    keys_8 = gl.allocate_shared_memory(gl.bfloat16, [TURNS * SPLIT // PATCH, PATCH, D], shared)
    values_8 = gl.allocate_shared_memory(gl.bfloat16, [TURNS * SPLIT // PATCH, PATCH, D], shared)
    keys = keys_8._reinterpret(gl.bfloat16, [TURNS, SPLIT, D], shared)
    values = values_8._reinterpret(gl.bfloat16, [TURNS, SPLIT, D], shared)
    for ahead in gl.static_range(TURNS):
        _ask(
            k_pool + shift, v_pool + shift, keys.index(ahead), values.index(ahead), listed,
            token + ahead * SPLIT, position, columns, pool_rows, kv_dim, SIZE, HEAD, loads, D,
        )  # fmt: skip
        async_copy.commit_group()
    q_w, q_other = _norm_weights(q_weight, HALF, HEAD, form, D)
    k_w, k_other = _norm_weights(k_weight, HALF, HEAD, form, D)
    c = _angles(cos, position, inside, HALF, form, D)
    s = _angles(sin, position, inside, HALF, form, D)
    own = pool_row(listed, position, columns, pool_rows, SIZE)
    wait()
    count = gl.minimum(gl.maximum(position // SPLIT + 1, 1), gl.cdiv(columns * SIZE, SPLIT))
    if WHOLE | (split < count):
        place = row * kv_heads + kv_head
        head = place * GROUP * HEAD
        turned = _turned(
            q, head, HEAD, GROUP, q_eps, q_w, q_other, c, s, G, HALF, HEAD, LANES, Q_ONE,
            form, lane_form, D)  # fmt: skip
        # Eight times alike, for whichever row of eight in shared memory is theirs.
        key = _turned(
            k, place * HEAD, 0, PATCH, k_eps, k_w, k_other, c, s, PATCH, HALF, HEAD, LANES,
            K_ONE, form, lane_form, D)  # fmt: skip
        d = gl.arange(0, D, layout=gl.SliceLayout(0, form))[None, :]
        eighth = gl.arange(0, PATCH, layout=gl.SliceLayout(1, form))[:, None]
        held = (d < HEAD) & (eighth >= 0)
        value = gl.load(v + place * HEAD + d + eighth * 0, mask=held, other=0.0)
        ends = (own >= 0) & (WHOLE | (split == count - 1))
        to = own * kv_dim + shift + d + eighth * 0
        gl.store(k_pool + to, key, mask=held & (eighth == 0) & ends)
        gl.store(v_pool + to, value, mask=held & (eighth == 0) & ends)
        queries = gl.allocate_shared_memory(gl.bfloat16, [G, D], shared, turned)
        if ends & (position < first + TURNS * SPLIT):
            async_copy.wait_group(0)
            gl.thread_barrier()
            block = (position - first) // PATCH
            mine = eighth == position % PATCH
            some_keys, some_values = keys_8.index(block), values_8.index(block)
            some_keys.store(gl.where(mine, key, some_keys.load(form)))
            some_values.store(gl.where(mine, value, some_values.load(form)))
        async_copy.wait_group(TURNS - 1)
        gl.thread_barrier()
        tile = queries.load(gl.DotOperandLayout(0, mma, 2))
        if WHOLE:
            m = gl.full([G], float("-inf"), gl.float32, layout=gl.SliceLayout(1, mma))
            sums = gl.zeros([G], gl.float32, layout=gl.SliceLayout(1, mma))
            acc = gl.zeros([G, D], gl.float32, layout=mma)
            for turn in range(count):
                async_copy.wait_group(TURNS - 1)
                gl.thread_barrier()
                now_keys, now_values = keys.index(turn % TURNS), values.index(turn % TURNS)
                now = column + turn * SPLIT
                gone = pool_row(listed, now, columns, pool_rows, SIZE) < 0
                m_next, sums_next, acc_next = _attended(
                    tile, now_keys, now_values, now <= position, ((now <= position) & gone) | past,
                    scale, G, mma, SPLIT, D)  # fmt: skip
                m, sums, acc = merge(m, sums, acc, m_next, sums_next, acc_next)
                gl.thread_barrier()
                if turn + TURNS < count:
                    # The row's own key and value are written by now.
                    _ask(
                        k_pool + shift, v_pool + shift, now_keys, now_values, listed,
                        token + (turn + TURNS) * SPLIT, position + 1, columns, pool_rows, kv_dim,
                        SIZE, HEAD, loads, D)  # fmt: skip
                async_copy.commit_group()
            _put(y, acc, sums, head, mma, GROUP, G, HEAD, D)
        else:
            wanted = column <= position
            m, sums, acc = _attended(
                tile, keys.index(0), values.index(0), wanted, (wanted & lost) | past, scale, G, mma,
                SPLIT, D)  # fmt: skip
            # The parts of a row's splits lie together; the last to arrive merges them.
            begin = place * gl.num_programs(0)
            g = gl.arange(0, G, layout=gl.SliceLayout(1, mma))
            o = gl.arange(0, D, layout=gl.SliceLayout(0, mma))
            at = begin + split
            gl.store(tops + at * 2 * GROUP + g, m, mask=g < GROUP)
            gl.store(tops + at * 2 * GROUP + GROUP + g, sums, mask=g < GROUP)
            inner = g[:, None] * HEAD + o[None, :]
            real = (g < GROUP)[:, None] & (o < HEAD)[None, :]
            gl.store(parts + at * GROUP * HEAD + inner, acc, mask=real)
            gl.thread_barrier()
            before = gl.atomic_add(arrived + place, 1, sem="acq_rel", scope="gpu")
            if before == count - 1:
                gl.store(arrived + place, 0)
                all_sums, all_acc = _merged(
                    tops, parts, begin, count, GROUP, FEW, HEAD, D, part_form, AT_ONCE
                )
                _put(y, all_acc, all_sums, head, part_form, GROUP, FEW, HEAD, D)


def norm_rope_attend(
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor,
    q_eps: float,
    k_eps: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    block_table: torch.Tensor,
    block_size: int,
    k_pool: torch.Tensor,
    v_pool: torch.Tensor,
    y: torch.Tensor,
    scale: float,
    q_weight_form: str = "plain",
    k_weight_form: str = "plain",
) -> object:
    """`norm_rope_write`, then `paged_attention`, where no row reads another's new key.

    Shapes as there; y: bf16, as q. Only y and the pools are written.
    """
    head_dim = q_weight.shape[-1]
    rows, q_dim = matrix("q", q)
    pool_rows, kv_dim = matrix("k_pool", k_pool)
    columns = matrix("block_table", block_table)[1]
    kv_heads, group = heads_of(q_dim, kv_dim, head_dim)
    if head_dim > MOST_HEAD_DIM:
        raise ValueError(f"head_dim is {head_dim}: this kernel holds at most {MOST_HEAD_DIM}")
    half = rotary_half(cos, head_dim)
    read = {"q": q, "k": k, "v": v, "positions": positions}
    disjoint({"y": y, "k_pool": k_pool, "v_pool": v_pool}, read)
    whole = rows * kv_heads >= WHOLE_FROM
    splits = 1 if whole else triton.cdiv(columns * block_size, SPLIT)
    alone = whole and head_dim <= 128 and rows * kv_heads < SHARED_FROM
    turns = TURNS_AHEAD if alone else 1
    parts = 0 if whole else rows * kv_heads * splits * group
    floats = scratch(parts * (head_dim + 2))
    arguments = (
        bf16("q", q, (rows, q_dim)),
        bf16("k", k, (rows, kv_dim)),
        bf16("v", v, (rows, kv_dim)),
        bf16("q_weight", q_weight, (head_dim,)),
        bf16("k_weight", k_weight, (head_dim,)),
        f32("cos", cos, (cos.shape[0], half)),
        f32("sin", sin, (cos.shape[0], half)),
        bf16("k_pool", k_pool, (pool_rows, kv_dim)),
        bf16("v_pool", v_pool, (pool_rows, kv_dim)),
        bf16("y", y, (rows, q_dim)),
        i32("positions", positions, (rows,)),
        i32("block_table", block_table, (rows, columns)),
        floats[parts * head_dim :],
        floats,
        counters(),
        cos.shape[0],
        columns,
        pool_rows,
        kv_heads,
        float(q_eps),
        float(k_eps),
        float(scale),
        block_size,
        SPLIT,
        group,
        power_of_two(group, LEAST_TILE),
        power_of_two(group),
        half,
        head_dim,
        power_of_two(head_dim, LEAST_TILE),
        lanes_for(head_dim),
        is_one_plus(q_weight_form),
        is_one_plus(k_weight_form),
        whole,
        turns,
        AT_ONCE,
    )
    return bind(_new_rows, (splits, kv_heads, rows), arguments, WARPS, stages=1)
