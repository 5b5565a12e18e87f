"""Each fused kernel against the chain that it replaces: the same bits, whatever the values."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.cache_of import Cache
from tests.kernels.cpu.values import CLASSES, SOUND, make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
KINDS = tuple(CLASSES)
F32 = torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "k", "sizes"),
    [
        (1, 256, (128, 64, 64)),
        (3, 72, (96, 24, 40)),
        (17, 1024, (256, 256, 256)),
        (70, 100, (37, 5, 9)),
    ],
)
@pytest.mark.parametrize("biased", (False, True))
def test_qkv(gpu, kind, rows, k, sizes, biased):
    x = make(kind, 1, rows, k)
    weights = [make("normal", 2 + i, n, k) for i, n in enumerate(sizes)]
    biases = [make("normal", 5 + i, n) if biased else None for i, n in enumerate(sizes)]
    fused = launched(
        gpu.functions["linear.qkv"],
        {name: Out(rows, n) for name, n in zip("qkv", sizes, strict=True)},
        x=x,
        **{f"{name}_weight": w for name, w in zip("qkv", weights, strict=True)},
        **{f"{name}_bias": b for name, b in zip("qkv", biases, strict=True)},
    )
    for name, weight, bias in zip("qkv", weights, biases, strict=True):
        out = {"y": Out(rows, weight.shape[0])}
        alone = launched(gpu.functions["linear.linear"], out, x=x, weight=weight, bias=bias)
        assert same(fused[name], alone["y"]), name
    if kind in SOUND:
        assert bool(fused["q"].isfinite().all())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "k", "inter"), [(1, 256, 512), (5, 72, 100), (16, 128, 9000), (33, 60, 87)]
)
@pytest.mark.parametrize("biased", (False, True))
def test_gate_up_silu(gpu, kind, rows, k, inter, biased):
    x, weight = make(kind, 1, rows, k), make("normal", 2, 2 * inter, k)
    bias = make("normal", 3, 2 * inter) if biased else None
    fused = launched(
        gpu.functions["linear.gate_up_silu"], {"y": Out(rows, inter)}, x=x, weight=weight, bias=bias
    )
    both = launched(
        gpu.functions["linear.linear"], {"y": Out(rows, 2 * inter)}, x=x, weight=weight, bias=bias
    )
    alone = launched(
        gpu.functions["activation.silu_mul"], {"y": Out(rows, inter)}, gate_up=both["y"]
    )
    assert same(fused["y"], alone["y"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "k", "n"), [(1, 512, 256), (4, 72, 300), (17, 100, 37)])
@pytest.mark.parametrize("biased", (False, True))
def test_linear_add(gpu, kind, rows, k, n, biased):
    x, weight, stream = make(kind, 1, rows, k), make("normal", 2, n, k), make("normal", 3, rows, n)
    bias = make("normal", 4, n) if biased else None
    fused = launched(
        gpu.functions["linear.linear_add"],
        {"y": Out(rows, n)},
        x=x,
        weight=weight,
        bias=bias,
        stream=stream,
    )
    out = {"y": Out(rows, n)}
    product = launched(gpu.functions["linear.linear"], out, x=x, weight=weight, bias=bias)["y"]
    alone = launched(
        gpu.functions["residual.residual_add"], {"y": Out(rows, n)}, stream=stream, delta=product
    )
    assert same(fused["y"], alone["y"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ("plain", "one_plus"))
@pytest.mark.parametrize("dim", (1, 24, 72, 100, 1024, 4096, 5120))
@pytest.mark.parametrize("shift", (0, 3))
def test_add_rms_norm(gpu, kind, form, dim, shift):
    rows = 5
    stream, delta = make(kind, 1, rows, dim), make(kind, 2, rows, dim)
    weight = make("normal", 3, dim)
    fused = launched(
        gpu.functions["norm.add_rms_norm"],
        {"total": Out(rows, dim), "y": Out(rows, dim, shift=shift)},
        stream=stream,
        delta=delta,
        weight=weight,
        eps=1e-6,
        weight_form=form,
    )
    total = launched(
        gpu.functions["residual.residual_add"], {"y": Out(rows, dim)}, stream=stream, delta=delta
    )["y"]
    alone = launched(
        gpu.functions["norm.rms_norm"],
        {"y": Out(rows, dim)},
        x=total,
        weight=weight,
        eps=1e-6,
        weight_form=form,
    )
    assert same(fused["total"], total)
    assert same(fused["y"], alone["y"])


CACHES = [(4, 2, 128), (3, 1, 24), (6, 2, 20), (2, 2, 256)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), CACHES)
@pytest.mark.parametrize("half", (None, 2))
def test_rope_write(gpu, kind, heads, kv_heads, head_dim, half):
    rows, cache = 7, Cache(heads, kv_heads, head_dim, kind=kind)
    tables = _tables(cache, rows, half)
    q, k, v = cache.q(rows), cache.k(rows), cache.v(rows)
    where, pools = cache.where(rows), cache.pools()
    fused = launched(
        gpu.functions["rope.rope_write"],
        {"q_out": Out(*q.shape)},
        q=q, k=k, v=v, head_dim=head_dim, **(tables | where), **pools,
    )  # fmt: skip
    turned = launched(
        gpu.functions["rope.rope"],
        {"q_out": Out(*q.shape), "k_out": Out(*k.shape)},
        q=q, k=k, head_dim=head_dim, **tables,
    )  # fmt: skip
    alone = launched(gpu.functions["kv.kv_write"], {}, k=turned["k_out"], v=v, **where, **pools)
    assert same(fused["q_out"], turned["q_out"])
    assert same(fused["k_pool"], alone["k_pool"])
    assert same(fused["v_pool"], alone["v_pool"])
    assert not same(fused["k_pool"], pools["k_pool"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ("plain", "one_plus"))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), CACHES)
@pytest.mark.parametrize("half", (None, 2))
def test_norm_rope_write(gpu, kind, form, heads, kv_heads, head_dim, half):
    rows, cache = 7, Cache(heads, kv_heads, head_dim, kind=kind)
    tables = _tables(cache, rows, half)
    q, k, v = cache.q(rows), cache.k(rows), cache.v(rows)
    where, pools = cache.where(rows), cache.pools()
    weights = {"q": make("normal", 5, head_dim), "k": make("normal", 6, head_dim)}
    fused = launched(
        gpu.functions["fused.norm_rope_write"],
        {"q_out": Out(*q.shape)},
        q=q, k=k, v=v, q_weight=weights["q"], k_weight=weights["k"], q_eps=1e-6, k_eps=1e-5,
        q_weight_form=form, k_weight_form=form, **(tables | where), **pools,
    )  # fmt: skip
    normed = {
        name: launched(
            gpu.functions["norm.head_norm"],
            {"y": Out(*x.shape)},
            x=x, weight=weights[name], eps=eps, weight_form=form,
        )["y"]
        for name, x, eps in (("q", q, 1e-6), ("k", k, 1e-5))
    }  # fmt: skip
    turned = launched(
        gpu.functions["rope.rope"],
        {"q_out": Out(*q.shape), "k_out": Out(*k.shape)},
        **normed, head_dim=head_dim, **tables,
    )  # fmt: skip
    alone = launched(gpu.functions["kv.kv_write"], {}, k=turned["k_out"], v=v, **where, **pools)
    assert same(fused["q_out"], turned["q_out"])
    assert same(fused["k_pool"], alone["k_pool"])
    assert same(fused["v_pool"], alone["v_pool"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ("plain", "one_plus"))
@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [*CACHES, (48, 3, 64), (16, 16, 32)])
@pytest.mark.parametrize("half", (None, 2))
@pytest.mark.parametrize("columns", (None, 3))
def test_norm_rope_attend(gpu, kind, form, heads, kv_heads, head_dim, half, columns):
    """Rows of sequences of their own; with few columns some positions lie past their table."""
    rows, cache = 17, Cache(heads, kv_heads, head_dim, kind=kind)
    tables = _tables(cache, rows, half)
    q, k, v = cache.q(rows), cache.k(rows), cache.v(rows)
    where, pools = cache.where(rows), cache.pools()
    if columns is not None:
        where |= {"block_table": where["block_table"][:, :columns].contiguous()}
    weights = {"q_weight": make("normal", 5, head_dim), "k_weight": make("normal", 6, head_dim)}
    norms = dict(q_eps=1e-6, k_eps=1e-5, q_weight_form=form, k_weight_form=form, **weights)
    some = {"scale": head_dim**-0.5}
    fused = launched(
        gpu.functions["decode_attention.norm_rope_attend"],
        {"y": Out(*q.shape)}, q=q, k=k, v=v, **norms, **some, **(tables | where), **pools,
    )  # fmt: skip
    turned = launched(
        gpu.functions["fused.norm_rope_write"],
        {"q_out": Out(*q.shape)}, q=q, k=k, v=v, **norms, **(tables | where), **pools,
    )  # fmt: skip
    written = {name: turned[name] for name in pools}
    alone = launched(
        gpu.functions["attention.paged_attention"],
        {"y": Out(*q.shape)}, q=turned["q_out"], head_dim=head_dim, **some, **where, **written,
    )  # fmt: skip
    assert same(fused["y"], alone["y"])
    assert same(fused["k_pool"], written["k_pool"])
    assert same(fused["v_pool"], written["v_pool"])


@pytest.mark.parametrize("rows", (1, 5, 40, 70, 300))
def test_norm_rope_attend_in_several_splits(gpu, rows):
    """Long sequences: parts that are merged, or whole rows where they are many."""
    kv_heads, head_dim, block, columns = 2, 128, 16, 40
    seed = torch.Generator().manual_seed(1)
    q, k, v = (make("normal", 2 + i, rows, n * head_dim) for i, n in enumerate((8, 2, 2)))
    positions = torch.randint(0, block * columns, (rows,), generator=seed, dtype=torch.int32)
    positions[: min(rows, 4)] = torch.tensor([128, 127, 0, 639])[:rows]
    table = torch.randperm(rows * columns, generator=seed).int().view(rows, columns)
    pools = {
        name: make("normal", 7 + i, rows * columns * block, kv_heads * head_dim)
        for i, name in enumerate(("k_pool", "v_pool"))
    }
    angle = torch.arange(block * columns)[:, None] * 10000.0 ** -(torch.arange(64) / 64)
    where = {"positions": positions, "block_table": table, "block_size": block}
    turns = {"cos": angle.cos(), "sin": angle.sin()}
    norms = {
        "q_eps": 1e-6, "k_eps": 1e-6, "q_weight": make("normal", 5, head_dim),
        "k_weight": make("normal", 6, head_dim),
    }  # fmt: skip
    fused = launched(
        gpu.functions["decode_attention.norm_rope_attend"],
        {"y": Out(*q.shape)}, q=q, k=k, v=v, scale=0.1, **norms, **turns, **where, **pools,
    )  # fmt: skip
    turned = launched(
        gpu.functions["fused.norm_rope_write"],
        {"q_out": Out(*q.shape)}, q=q, k=k, v=v, **norms, **turns, **where, **pools,
    )  # fmt: skip
    written = {name: turned[name] for name in pools}
    alone = launched(
        gpu.functions["attention.paged_attention"],
        {"y": Out(*q.shape)}, q=turned["q_out"], head_dim=head_dim, scale=0.1, **where, **written,
    )  # fmt: skip
    assert bool(fused["y"].isfinite().all())
    assert same(fused["y"], alone["y"])
    assert same(fused["k_pool"], written["k_pool"])


def _tables(cache: Cache, rows: int, half: int | None) -> dict[str, torch.Tensor]:
    """Tables of the whole head, or of its first few pairs: the rest is copied."""
    tables = cache.rope(rows)
    if half is not None:
        tables |= {name: tables[name][:, :half].contiguous() for name in ("cos", "sin")}
    return tables
