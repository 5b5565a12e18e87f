"""Every kernel of one op beside its plain torch twin, on awkward sizes."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.cache_of import Cache
from tests.kernels.cpu.values import guarded, make, same_bits

ROWS = (1, 2, 3, 5, 8, 17)
DIMS = (64, 67, 100, 576, 1536)


def close(got, exact, share=0.01):
    """Within one bf16 step a rounding apart, and nearly everywhere equal."""
    assert bool(exact.isfinite().all())
    assert bool(exact.ne(0).any())
    wrong = (got.double() - exact.double()).abs()
    assert bool((wrong <= 2.0**-6 * exact.double().abs() + 2.0**-133).all())
    assert float((got != exact).double().mean()) <= share


@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm(cpu, module, dim):
    for rows in ROWS:
        for kind in ("normal", "mixed_exponents"):
            x, weight, y = make(kind, 1, rows, dim), make("normal", 2, dim), guarded(rows, dim)
            cpu.functions["norm.rms_norm"](x=x, weight=weight, y=y.tensor, eps=1e-5)()
            close(y.check(), module("naive.norm").rms_norm(x=x, weight=weight, eps=1e-5))


def test_rms_norm_keeps_eps(cpu, module):
    """Mean squares as small as eps: it shrinks the result by the square root of two."""
    x, weight = make("normal", 1, 3, 64) * 2**-10, make("normal", 2, 64)
    with_eps, without = guarded(3, 64), guarded(3, 64)
    for y, eps in ((with_eps, 2.0**-20), (without, 2.0**-50)):
        cpu.functions["norm.rms_norm"](x=x, weight=weight, y=y.tensor, eps=eps)()
        close(y.check(), module("naive.norm").rms_norm(x=x, weight=weight, eps=eps))
    ratio = with_eps.tensor.float().norm() / without.tensor.float().norm()
    assert 0.65 < float(ratio) < 0.77


@pytest.mark.parametrize(("heads", "head_dim"), ((3, 64), (2, 67), (5, 10)))
def test_head_norm(cpu, module, heads, head_dim):
    for rows in ROWS:
        x, weight = make("normal", 1, rows, heads * head_dim), make("normal", 2, head_dim)
        y = guarded(rows, heads * head_dim)
        cpu.functions["norm.head_norm"](x=x, weight=weight, y=y.tensor, eps=1e-6)()
        close(y.check(), module("naive.norm").head_norm(x=x, weight=weight, eps=1e-6))


@pytest.mark.parametrize("dim", DIMS)
def test_silu_mul(cpu, module, dim):
    for rows in ROWS:
        gate_up, y = 4 * make("normal", 1, rows, 2 * dim), guarded(rows, dim)
        cpu.functions["activation.silu_mul"](gate_up=gate_up, y=y.tensor)()
        close(y.check(), module("naive.activation").silu_mul(gate_up=gate_up))


def test_silu_mul_at_the_ends_of_the_range(cpu, module):
    gate = torch.tensor([0.0, -0.0, 88.0, -88.0, 200.0, -200.0, 3e38, -3e38, float("inf")])
    gate_up = torch.cat([gate, torch.ones(9)]).bfloat16()[None]
    y = guarded(1, 9)
    cpu.functions["activation.silu_mul"](gate_up=gate_up, y=y.tensor)()
    assert same_bits(y.check(), module("naive.activation").silu_mul(gate_up=gate_up))


@pytest.mark.parametrize("dim", DIMS)
def test_residual_add_is_exact(cpu, module, dim):
    for kind in ("normal", "cancelling", "any_bits"):
        stream, delta, y = make(kind, 1, 5, dim), make(kind, 2, 5, dim), guarded(5, dim)
        cpu.functions["residual.residual_add"](stream=stream, delta=delta, y=y.tensor)()
        assert same_bits(
            y.check(), module("naive.residual").residual_add(stream=stream, delta=delta)
        )


@pytest.mark.parametrize("dim", DIMS)
def test_embed_is_a_copy_zeros_for_padding_and_nan_outside(cpu, module, dim):
    table, y = make("any_bits", 1, 50, dim), guarded(6, dim)
    ids = torch.tensor([49, 0, 7, 50, -1, -2], dtype=torch.int32)
    cpu.functions["embed.embed"](token_ids=ids, table=table, y=y.tensor)()
    assert same_bits(y.check(), module("naive.embed").embed(token_ids=ids, table=table))
    assert y.tensor.view(torch.int16)[4].eq(0).all(), "a padding row is +0.0 throughout"
    assert y.tensor[[3, 5]].isnan().all()


CACHES = (
    Cache(heads=9, kv_heads=3, head_dim=64),
    Cache(heads=4, kv_heads=2, head_dim=67 * 2),
    Cache(heads=4, kv_heads=4, head_dim=10, block_size=5),
    Cache(heads=6, kv_heads=1, head_dim=128, block_size=1),
)
ids = [f"{c.heads}x{c.kv_heads}x{c.head_dim}b{c.block_size}" for c in CACHES]


@pytest.mark.parametrize("cache", CACHES, ids=ids)
def test_rope(cpu, module, cache):
    for rows in ROWS:
        q, k = cache.q(rows), cache.k(rows)
        q_out, k_out = guarded(*q.shape), guarded(*k.shape)
        inputs = {"q": q, "k": k, **cache.rope(rows), "head_dim": cache.head_dim}
        cpu.functions["rope.rope"](**inputs, q_out=q_out.tensor, k_out=k_out.tensor)()
        wanted = module("naive.rope").rope(**inputs)
        for got, want in zip((q_out, k_out), wanted, strict=True):
            wrong = (got.check().double() - want.double()).abs()
            assert bool((wrong <= 2.0**-8 * want.double().abs() + 2.0**-20).all())
            assert float((got.tensor != want).double().mean()) < 0.01


def test_rope_copies_what_it_does_not_rotate(cpu):
    cache = Cache(heads=2, kv_heads=1, head_dim=64)
    q, k = cache.q(3), cache.k(3)
    q_out, k_out = guarded(*q.shape), guarded(*k.shape)
    rope = cache.rope(3)
    half = {**rope, "cos": rope["cos"][:, :8].contiguous(), "sin": rope["sin"][:, :8].contiguous()}
    cpu.functions["rope.rope"](
        q=q, k=k, **half, head_dim=64, q_out=q_out.tensor, k_out=k_out.tensor
    )()
    got, was = (tensor.unflatten(-1, (2, 64)) for tensor in (q_out.check(), q))
    assert same_bits(got[..., 16:], was[..., 16:])
    assert not same_bits(got[1:, :, :16], was[1:, :, :16])


@pytest.mark.parametrize("cache", CACHES, ids=ids)
def test_kv_write_touches_only_its_rows(cpu, module, cache):
    for rows in ROWS:
        k, v = cache.k(rows), cache.v(rows)
        pools = cache.pools()
        wanted = module("naive.kv").kv_write(k=k, v=v, **pools, **cache.where(rows))
        cpu.functions["kv.kv_write"](k=k, v=v, **pools, **cache.where(rows))()
        for got, want in zip(pools.values(), wanted, strict=True):
            assert same_bits(got, want)


def test_kv_write_outside_its_table_writes_nothing(cpu):
    cache = Cache(heads=1, kv_heads=1, head_dim=8)
    pools, where = cache.pools(), cache.where(2)
    before = [pool.clone() for pool in pools.values()]
    where["positions"] = torch.tensor([-1, 10_000], dtype=torch.int32)
    cpu.functions["kv.kv_write"](k=cache.k(2), v=cache.v(2), **pools, **where)()
    assert all(map(same_bits, pools.values(), before))


def test_kv_write_past_the_pool_writes_nothing(cpu):
    pools = {"k_pool": guarded(32, 8), "v_pool": guarded(32, 8)}
    cpu.functions["kv.kv_write"](
        k=make("normal", 1, 2, 8), v=make("normal", 2, 2, 8),
        positions=torch.tensor([1, 2], dtype=torch.int32),
        block_table=torch.tensor([[2], [-1]], dtype=torch.int32), block_size=16,
        **{name: pool.tensor for name, pool in pools.items()},
    )()  # fmt: skip
    for pool in pools.values():
        assert pool.untouched()


@pytest.mark.parametrize("cache", CACHES, ids=ids)
def test_paged_attention(cpu, module, cache):
    for rows in ROWS:
        q = cache.q(rows)
        y = guarded(*q.shape)
        inputs = {
            **cache.pools(), **cache.where(rows), "q": q,
            "head_dim": cache.head_dim, "scale": cache.head_dim**-0.5,
        }  # fmt: skip
        cpu.functions["attention.paged_attention"](**inputs, y=y.tensor)()
        want = module("naive.attention").paged_attention(**inputs)
        # Values are averages of normal ones; what float32 loses is far below a bf16 step of them.
        wrong = (y.check().double() - want.double()).abs()
        assert bool((wrong <= 2.0**-7 * want.double().abs() + 2.0**-18).all())
        assert float((y.tensor != want).double().mean()) < 0.02


def test_paged_attention_reads_nothing_past_its_position(cpu):
    cache = Cache(heads=4, kv_heads=2, head_dim=64)
    q, pools, where = cache.q(5), cache.pools(), cache.where(5)
    y, again = guarded(*q.shape), guarded(*q.shape)
    call = cpu.functions["attention.paged_attention"]
    fixed = {"q": q, "head_dim": 64, "scale": 0.125, **where}
    call(**fixed, **pools, y=y.tensor)()
    seen = cache.rows_seen(5)
    for pool in pools.values():
        unseen = torch.ones(len(pool), dtype=torch.bool)
        unseen[seen] = False
        pool[unseen] = float("nan")
    call(**fixed, **pools, y=again.tensor)()
    assert bool(y.check().isfinite().all())
    assert same_bits(again.check(), y.tensor)


def test_paged_attention_outside_its_table_is_nan(cpu):
    cache = Cache(heads=2, kv_heads=1, head_dim=16)
    q, where = cache.q(2), cache.where(2)
    where["block_table"][1, 0] = 10_000
    y = guarded(*q.shape)
    cpu.functions["attention.paged_attention"](
        q=q, **cache.pools(), **where, head_dim=16, scale=0.25, y=y.tensor
    )()
    assert bool(y.check()[0].isfinite().all())
    assert bool(y.tensor[1].isnan().all())


@pytest.mark.parametrize("scale", (1e-3, 0.125, 30.0), ids=("flat", "usual", "peaked"))
def test_paged_attention_at_any_sharpness(cpu, module, scale):
    cache = Cache(heads=2, kv_heads=2, head_dim=64)
    inputs = {"q": cache.q(5), **cache.pools(), **cache.where(5), "head_dim": 64, "scale": scale}
    y = guarded(5, 128)
    cpu.functions["attention.paged_attention"](**inputs, y=y.tensor)()
    want = module("naive.attention").paged_attention(**inputs)
    # A score's float32 error, some 2^-20 of 8 * 30, moves each probability by as much.
    wrong = (y.check().double() - want.double()).abs()
    assert bool((wrong <= 2.0**-7 * want.double().abs() + 2.0**-10).all())
