"""Each fused kernel gives the bytes of the kernels it replaces, on values that show a difference.

These are the microtests that the rules of FUSIONS.toml name.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.cache_of import Cache
from tests.kernels.cpu.values import CLASSES, SOUND, guarded, make, same_bits

ROWS = (1, 2, 5, 17)
SHAPES = ((96, 576), (67, 100), (34, 67))


def equal(kind, fused, *one_by_one):
    """Equal bytes; and for classes of finite results, finite and not all zero."""
    for got, want in zip(fused, one_by_one, strict=True):
        assert same_bits(got, want)
        assert kind not in SOUND or bool(got.isfinite().all())
        # Paired products may cancel to zero exactly, where a sum has few of them.
        assert kind not in SOUND or kind == "paired" or bool(got.ne(0).any())


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("dim", (64, 67, 576))
def test_add_rms_norm(cpu, kind, dim):
    for rows in ROWS:
        stream, delta = make(kind, 1, rows, dim), make(kind, 2, rows, dim)
        weight = make("normal", 3, dim)
        total, y, fused_total, fused_y = (guarded(rows, dim) for _ in range(4))
        cpu.functions["residual.residual_add"](stream=stream, delta=delta, y=total.tensor)()
        cpu.functions["norm.rms_norm"](x=total.check(), weight=weight, y=y.tensor, eps=1e-6)()
        cpu.functions["norm.add_rms_norm"](
            stream=stream, delta=delta, weight=weight,
            total=fused_total.tensor, y=fused_y.tensor, eps=1e-6,
        )()  # fmt: skip
        equal(kind, (fused_total.check(), fused_y.check()), total.tensor, y.check())


@pytest.mark.parametrize("biased", (False, True), ids=("plain", "biased"))
@pytest.mark.parametrize("kind", CLASSES)
def test_qkv(cpu, kind, biased):
    for rows in ROWS:
        for n, k in SHAPES:
            x = make(kind, 1, rows, k)
            fused, parts, alone = {}, [], []
            for name, size in (("q", n), ("k", n // 3), ("v", n // 3 + 1)):
                weight = make("cancelling", ord(name), size, k)
                bias = make("normal", ord(name), size) if biased else None
                y, part = guarded(rows, size), guarded(rows, size)
                cpu.functions["linear.linear"](x=x, weight=weight, bias=bias, y=y.tensor)()
                fused |= {f"{name}_weight": weight, f"{name}_bias": bias, name: part.tensor}
                alone.append(y)
                parts.append(part)
            cpu.functions["linear.qkv"](x=x, **fused)()
            equal(kind, [part.check() for part in parts], *[y.check() for y in alone])


@pytest.mark.parametrize("biased", (False, True), ids=("plain", "biased"))
@pytest.mark.parametrize("kind", CLASSES)
def test_gate_up_silu(cpu, kind, biased):
    for rows in ROWS:
        for inter, k in SHAPES:
            x, weight = make(kind, 1, rows, k), make("cancelling", 2, 2 * inter, k)
            bias = make("normal", 3, 2 * inter) if biased else None
            both, y, fused = guarded(rows, 2 * inter), guarded(rows, inter), guarded(rows, inter)
            cpu.functions["linear.linear"](x=x, weight=weight, bias=bias, y=both.tensor)()
            cpu.functions["activation.silu_mul"](gate_up=both.check(), y=y.tensor)()
            cpu.functions["linear.gate_up_silu"](x=x, weight=weight, bias=bias, y=fused.tensor)()
            equal(kind, [fused.check()], y.check())


@pytest.mark.parametrize("biased", (False, True), ids=("plain", "biased"))
@pytest.mark.parametrize("kind", CLASSES)
def test_linear_add(cpu, kind, biased):
    for rows in ROWS:
        for n, k in SHAPES:
            x, weight, stream = (
                make(kind, 1, rows, k), make("cancelling", 2, n, k), make(kind, 4, rows, n),
            )  # fmt: skip
            bias = make("normal", 3, n) if biased else None
            product, y, fused = (guarded(rows, n) for _ in range(3))
            inputs = {"x": x, "weight": weight, "bias": bias}
            cpu.functions["linear.linear"](**inputs, y=product.tensor)()
            add = cpu.functions["residual.residual_add"]
            add(stream=stream, delta=product.check(), y=y.tensor)()
            cpu.functions["linear.linear_add"](**inputs, stream=stream, y=fused.tensor)()
            equal(kind, [fused.check()], y.check())


def test_linear_add_is_not_one_rounding(cpu):
    """The inner rounding shows: without it these bytes would differ, so the tests above see it."""
    x, weight, stream = (
        make("normal", 1, 8, 576),
        make("normal", 2, 96, 576),
        make("mixed_exponents", 3, 8, 96),
    )
    y = guarded(8, 96)
    cpu.functions["linear.linear_add"](x=x, weight=weight, bias=None, stream=stream, y=y.tensor)()
    once = (x.double() @ weight.double().T + stream.double()).float().bfloat16()
    assert 0.005 < float((y.check() != once).double().mean()) < 0.5


CACHES = (
    Cache(heads=9, kv_heads=3, head_dim=64),
    Cache(heads=4, kv_heads=2, head_dim=67 * 2),
    Cache(heads=4, kv_heads=4, head_dim=10, block_size=5),
)


def _of_kind(kind):
    return [Cache(c.heads, c.kv_heads, c.head_dim, c.block_size, kind) for c in CACHES]


def _rope_then_write(cpu, q, k, v, rope, where, pools, head_dim):
    q_out, k_out = guarded(*q.shape), guarded(*k.shape)
    cpu.functions["rope.rope"](
        q=q, k=k, **rope, head_dim=head_dim, q_out=q_out.tensor, k_out=k_out.tensor
    )()
    cpu.functions["kv.kv_write"](k=k_out.check(), v=v, **where, **pools)()
    return q_out.check(), pools["k_pool"], pools["v_pool"]


@pytest.mark.parametrize("kind", CLASSES)
def test_rope_write(cpu, kind):
    for cache in _of_kind(kind):
        for rows in ROWS:
            q, k, v, rope = cache.q(rows), cache.k(rows), cache.v(rows), cache.rope(rows)
            where, pools, fused_pools = cache.where(rows), cache.pools(), cache.pools()
            alone = _rope_then_write(cpu, q, k, v, rope, where, pools, cache.head_dim)
            q_out = guarded(*q.shape)
            cpu.functions["rope.rope_write"](
                q=q, k=k, v=v, **rope | where, **fused_pools,
                q_out=q_out.tensor, head_dim=cache.head_dim,
            )()  # fmt: skip
            equal(kind, (q_out.check(), *fused_pools.values()), *alone)
            assert not same_bits(fused_pools["k_pool"], cache.pools()["k_pool"])


@pytest.mark.parametrize("kind", CLASSES)
def test_norm_rope_write(cpu, kind):
    for cache in _of_kind(kind):
        for rows in ROWS:
            q, k, v, rope = cache.q(rows), cache.k(rows), cache.v(rows), cache.rope(rows)
            weights = make("normal", 31, cache.head_dim), make("normal", 32, cache.head_dim)
            where, pools, fused_pools = cache.where(rows), cache.pools(), cache.pools()
            normed = [guarded(*q.shape), guarded(*k.shape)]
            for x, weight, y, eps in zip((q, k), weights, normed, (1e-6, 1e-5), strict=True):
                cpu.functions["norm.head_norm"](x=x, weight=weight, y=y.tensor, eps=eps)()
            qn, kn = (y.check() for y in normed)
            alone = _rope_then_write(cpu, qn, kn, v, rope, where, pools, cache.head_dim)
            q_out = guarded(*q.shape)
            cpu.functions["fused.norm_rope_write"](
                q=q, k=k, v=v, q_weight=weights[0], k_weight=weights[1], q_eps=1e-6, k_eps=1e-5,
                **rope | where, **fused_pools, q_out=q_out.tensor,
            )()  # fmt: skip
            equal(kind, (q_out.check(), *fused_pools.values()), *alone)


def test_rows_that_share_a_block_are_written_in_order(cpu):
    """Padding rows own one dummy block: the last one's bytes stay, whatever the threads do."""
    cache = Cache(heads=2, kv_heads=2, head_dim=64)
    rows = 17
    q, k, v, rope, where = (
        cache.q(rows),
        cache.k(rows),
        cache.v(rows),
        cache.rope(rows),
        cache.where(rows),
    )
    where["block_table"][:] = where["block_table"][0].clone()
    where["positions"] = torch.full((rows,), 5, dtype=torch.int32)
    rope["positions"] = where["positions"]
    pools, last = cache.pools(), cache.pools()
    q_out = guarded(*q.shape)
    fixed = {"head_dim": 64, "block_size": 16}
    call = cpu.functions["rope.rope_write"]
    call(q=q, k=k, v=v, **rope | where, **pools, q_out=q_out.tensor, head_dim=64)()
    one = {name: where[name][-1:].contiguous() for name in ("positions", "block_table")}
    call(
        q=q[-1:], k=k[-1:], v=v[-1:], cos=rope["cos"], sin=rope["sin"], **one, **fixed, **last,
        q_out=guarded(1, 128).tensor,
    )()  # fmt: skip
    assert all(map(same_bits, pools.values(), last.values()))
