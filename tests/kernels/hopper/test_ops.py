"""Each op against its twin in plain torch, and what it must not touch or read."""

from __future__ import annotations

import importlib

import pytest
import torch

from metpipe.engine.kernel_set import load_kernel_set
from tests.kernels.cpu.cache_of import Cache
from tests.kernels.cpu.conftest import FOLDER as CPU_FOLDER
from tests.kernels.cpu.conftest import PACKAGE as CPU_PACKAGE
from tests.kernels.cpu.hybrid import Layer, no_steps, slots_of
from tests.kernels.cpu.values import make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
F32, I32 = torch.float32, torch.int32
BF16_STEP = 2.0**-8


@pytest.fixture(scope="module")
def twin():
    load_kernel_set(CPU_FOLDER, package=CPU_PACKAGE)

    def find(name):
        module, _, function = name.rpartition(".")
        return getattr(importlib.import_module(f"{CPU_PACKAGE}.naive.{module}"), function)

    return find


def near(found, wanted, steps=1.01, scale=0.0):
    """Within so many roundings to bf16, or `scale` times the greatest value."""
    found, wanted = found.double(), wanted.double()
    assert bool(found.isfinite().all())
    room = steps * BF16_STEP * wanted.abs() + scale * wanted.abs().max()
    assert bool(((found - wanted).abs() <= room).all()), float(
        ((found - wanted).abs() - room).max()
    )


@pytest.mark.parametrize("rows", (1, 3, 40))
@pytest.mark.parametrize(("n", "k"), [(96, 64), (300, 72), (5, 1000), (1, 60)])
def test_linear(gpu, twin, rows, n, k):
    x, weight, bias = make("normal", 1, rows, k), make("normal", 2, n, k), make("normal", 3, n)
    out = {"y": Out(rows, n)}
    found = launched(gpu.functions["linear.linear"], out, x=x, weight=weight, bias=bias)["y"]
    near(found, twin("linear.linear")(x=x, weight=weight, bias=bias), scale=1e-5)


@pytest.mark.parametrize("dim", (24, 100, 4096))
@pytest.mark.parametrize("form", ("plain", "one_plus"))
def test_norms(gpu, twin, dim, form):
    x, weight = make("normal", 1, 4, 3 * dim), make("normal", 2, dim)
    shared = {"weight": weight, "eps": 1e-6, "weight_form": form}
    found = launched(gpu.functions["norm.head_norm"], {"y": Out(4, 3 * dim)}, x=x, **shared)["y"]
    near(found, twin("norm.head_norm")(x=x, **shared), steps=2.01)


def test_embed(gpu, twin):
    ids, table = torch.tensor([3, 0, -1, 7, 6, 1 << 30], dtype=I32), make("normal", 1, 7, 300)
    out = {"y": Out(6, 300)}
    found = launched(gpu.functions["embed.embed"], out, token_ids=ids, table=table)["y"]
    assert same(found[[0, 1, 4]], table[[3, 0, 6]])
    assert same(found[2], torch.zeros(300, dtype=torch.bfloat16))
    assert bool(found[[3, 5]].isnan().all())


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 128), (3, 1, 24), (2, 2, 256)])
def test_attention(gpu, twin, heads, kv_heads, head_dim):
    rows, cache = 17, Cache(heads, kv_heads, head_dim)
    arguments = cache.where(rows) | cache.pools() | {"q": cache.q(rows)}
    arguments |= {"head_dim": head_dim, "scale": head_dim**-0.5}
    unseen = torch.ones(len(arguments["k_pool"]), dtype=torch.bool)
    unseen[cache.rows_seen(rows)] = False
    wanted = twin("attention.paged_attention")(**arguments)
    for name in ("k_pool", "v_pool"):
        arguments[name][unseen] = float("nan")
    out = {"y": Out(rows, heads * head_dim)}
    found = launched(gpu.functions["attention.paged_attention"], out, **arguments)["y"]
    near(found, wanted, steps=2.01, scale=4e-3)


@pytest.mark.parametrize("edge", ("position", "table", "pool"))
def test_an_attention_past_its_cache_is_nan(gpu, edge):
    cache = Cache(2, 1, 24)
    arguments = cache.where(3) | cache.pools() | {"q": cache.q(3)}
    arguments |= {"head_dim": 24, "scale": 0.2}
    arguments["positions"][1] = 40
    if edge == "position":
        arguments["positions"][1] = 1 << 20
    elif edge == "table":
        arguments["block_table"][1, 1] = -1
    else:
        arguments["block_table"][1, 1] = 1 << 20
    found = launched(gpu.functions["attention.paged_attention"], {"y": Out(3, 48)}, **arguments)[
        "y"
    ]
    assert bool(found[1].isnan().all())
    assert bool(found[[0, 2]].isfinite().all())


@pytest.mark.parametrize("rows", (1, 9))
@pytest.mark.parametrize("vocab", (1, 300, 5000, 151936))
def test_argmax(gpu, rows, vocab):
    logits = make("normal", 1, rows, vocab)
    logits[0, vocab // 2 :] = logits[0].max()
    found = launched(
        gpu.functions["head.argmax"], {"tokens": Out(rows, 1, dtype=I32)}, logits=logits
    )["tokens"]
    best = logits.float().amax(1, keepdim=True)
    first = (logits.float() == best).int().argmax(1, keepdim=True).int()
    assert torch.equal(found, first)


def test_argmax_of_nan_infinity_and_zeros(gpu):
    nan, inf = float("nan"), float("inf")
    logits = torch.tensor(
        [
            [nan, nan],
            [-inf, -inf],
            [nan, -3.0],
            [-0.0, 0.0],
            [-inf, -1e38],
            [nan, inf],
            [-2.0, -1.0],
        ]
    ).bfloat16()
    found = launched(gpu.functions["head.argmax"], {"tokens": Out(7, dtype=I32)}, logits=logits)
    assert found["tokens"].tolist() == [0, 0, 1, 0, 1, 1, 1]


def test_silu_mul_gates_and_moves(gpu, twin):
    both = make("mixed_exponents", 1, 5, 200)
    found = launched(gpu.functions["activation.silu_mul"], {"y": Out(5, 100)}, gate_up=both)["y"]
    near(found, twin("activation.silu_mul")(gate_up=both), steps=2.01, scale=1e-40)
    x, gate = make("normal", 2, 5, 100), make("normal", 3, 5, 100)
    out = {"y": Out(5, 100)}
    found = launched(gpu.functions["gates.sigmoid_gate_mul"], out, x=x, gate=gate)["y"]
    near(found, twin("gates.sigmoid_gate_mul")(x=x, gate=gate), steps=2.01)
    out = {"first": Out(5, 100), "second": Out(5, 100)}
    found = launched(gpu.functions["split.split_heads"], out, both=both, head_dim=20)
    first, second = twin("split.split_heads")(both=both, head_dim=20)
    assert same(found["first"], first)
    assert same(found["second"], second)
    out = {"y": Out(5, 300)}
    found = launched(gpu.functions["split.concat"], out, first=both, second=x)["y"]
    assert same(found, torch.cat((both, x), 1))


LAYERS = (Layer(2, 4, 128, 128), Layer(2, 6, 26, 22), Layer(1, 3, 7, 19))


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("rows", (1, 6))
def test_delta_layer(gpu, twin, layer, rows):
    slots = slots_of(rows)
    shared = layer.conv() | {"slots": slots, "x": layer.qkvz(rows)}
    shared |= no_steps(shared["conv"], rows)
    out = {"y": Out(rows, layer.channels, dtype=F32)}
    found = launched(gpu.functions["conv.conv1d_update"], out, **shared)
    wanted = twin("conv.conv1d_update")(**shared)
    near(found["y"], wanted[0], steps=1e-3, scale=1e-6)
    assert torch.equal(found["conv"], wanted[1])
    h = layer.states()
    shared = layer.recurrence(rows) | {"h": h, "slots": slots} | no_steps(h, rows)
    out = {"y": Out(rows, layer.heads * layer.dv, dtype=F32)}
    found = launched(gpu.functions["delta.gdn_recurrence"], out, **shared)
    wanted = twin("delta.gdn_recurrence")(**shared)
    near(found["y"], wanted[0], steps=1e-2, scale=1e-5)
    near(found["h"], wanted[1], steps=1e-2, scale=1e-5)


def test_a_slot_outside_the_states_is_nan_and_changes_none(gpu):
    layer, slots = LAYERS[1], torch.tensor([0, 5, 1, -1], dtype=I32)
    h = layer.states()
    shared = layer.recurrence(4) | {"h": h, "slots": slots} | no_steps(h, 4)
    out = {"y": Out(4, layer.heads * layer.dv, dtype=F32)}
    found = launched(gpu.functions["delta.gdn_recurrence"], out, **shared)
    assert bool(found["y"][[1, 3]].isnan().all())
    assert bool(found["y"][[0, 2]].isfinite().all())
    assert torch.equal(found["h"][2:], h[2:])


@pytest.mark.parametrize(("experts", "count"), [(7, 3), (64, 8), (256, 8), (1, 1)])
def test_top_k(gpu, twin, experts, count):
    logits = make("normal", 1, 9, experts)
    logits[0] = 1.0  # all alike: the lowest ids
    outputs = {"weights": Out(9, count, dtype=F32), "ids": Out(9, count, dtype=I32)}
    found = launched(gpu.functions["router.top_k"], outputs, logits=logits, count=count)
    weights, ids = twin("router.top_k")(logits=logits, count=count)
    assert torch.equal(found["ids"], ids.int())
    near(found["weights"], weights, steps=1e-3)


@pytest.mark.parametrize("size", (1, 7, 8, 9, 144, 4096, 40001))
@pytest.mark.parametrize("shift", (0, 1, 2))
def test_the_hash_is_the_cpu_set_s(gpu, twin, size, shift):
    content = torch.randint(0, 256, (size + 8,), dtype=torch.uint8)[shift : shift + size].clone()
    there = torch.zeros(size + 8, dtype=torch.uint8, device="cuda")
    there[shift : shift + size] = content.cuda()
    key = (7 << 64) + 5
    found = gpu.functions["hash.hash128"](there[shift : shift + size], key)
    assert found == twin("hash.hash128")(content, key)


def test_the_hash_of_pool_rows(gpu, twin):
    pool, table = make("normal", 1, 48, 13), torch.tensor([2, 0, 1], dtype=I32)
    where = {"block_table": table, "count": 37, "block_size": 16}
    found = gpu.functions["hash.hash128_rows"](pool=pool.cuda(), **where)
    assert found == twin("hash.hash128_rows")(pool=pool, **where)
