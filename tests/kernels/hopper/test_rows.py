"""Canonical rows: a row's bits are the same alone and among any number of others."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.values import make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
COUNTS = (*range(1, 36), 47, 48, 63, 64, 65, 96, 127, 128)
KINDS = ("normal", "cancelling", "mixed_exponents")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1024, 1024), (300, 72), (17000, 512), (256, 3072)])
def test_a_linear_s_rows(gpu, kind, n, k):
    x = make(kind, 1, 128, k)
    weight = make("paired" if kind == "cancelling" else "normal", 2, n, k)
    alone = _linear(gpu, x[-1:], weight)
    whole = _linear(gpu, x, weight)
    assert same(whole[-1:], alone)
    for rows in COUNTS:
        assert same(_linear(gpu, x[:rows].clone(), weight), whole[:rows]), rows


def _linear(gpu, x, weight):
    out = {"y": Out(x.shape[0], weight.shape[0])}
    return launched(gpu.functions["linear.linear"], out, x=x, weight=weight, bias=None)["y"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(1024, 1024), (100, 72), (12288, 512)])
def test_gate_and_up_s_rows(gpu, kind, n, k):
    x, weight = make(kind, 1, 128, k), make("normal", 2, 2 * n, k)

    def run(rows):
        function = gpu.functions["linear.gate_up_silu"]
        return launched(
            function, {"y": Out(rows, n)}, x=x[:rows].clone(), weight=weight, bias=None
        )["y"]

    whole = run(128)
    for rows in COUNTS:
        assert same(run(rows), whole[:rows]), rows


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(8, 2, 128), (6, 2, 20), (4, 1, 256)])
@pytest.mark.parametrize("rows", (2, 17, 64, 128, 300))
def test_an_attention_s_rows(gpu, heads, kv_heads, head_dim, rows):
    """Few rows run split, many whole; what a row attends to is the same."""
    block, columns = 16, 40
    seed = torch.Generator().manual_seed(1)
    pool_rows = block * columns * 3
    pools = {
        name: make("normal", 3 + i, pool_rows, kv_heads * head_dim)
        for i, name in enumerate(("k_pool", "v_pool"))
    }
    q = make("normal", 2, rows, heads * head_dim)
    table = torch.stack(
        [torch.randperm(3 * columns, generator=seed)[:columns] for _ in range(rows)]
    )
    positions = torch.randint(0, block * columns, (rows,), generator=seed, dtype=torch.int32)
    positions[0], positions[-1] = 0, block * columns - 1

    def run(some):
        return launched(
            gpu.functions["attention.paged_attention"],
            {"y": Out(len(some), heads * head_dim)},
            q=q[some],
            positions=positions[some],
            block_table=table[some].int(),
            block_size=block,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            **pools,
        )["y"]

    whole = run(torch.arange(rows))
    assert bool(whole.isfinite().all())
    for row in {0, 1, rows // 2, rows - 1}:
        assert same(run(torch.tensor([row])), whole[row : row + 1]), row


TILES = [
    (16, 16, 64, False, 4, 2), (16, 32, 128, False, 4, 3), (16, 64, 64, False, 2, 3),
    (16, 128, 64, False, 8, 3), (32, 64, 64, False, 4, 3), (64, 64, 64, False, 4, 3),
    (128, 64, 64, False, 4, 3), (128, 128, 32, False, 8, 3), (16, 64, 128, True, 4, 3),
    (16, 128, 64, True, 4, 3), (32, 64, 64, True, 4, 3), (64, 128, 64, True, 8, 2),
    (16, 16, 256, True, 4, 2), (16, 32, 256, True, 4, 3),
]  # fmt: skip


@pytest.mark.parametrize("kind", ("cancelling", "mixed_exponents", "huge_and_tiny"))
@pytest.mark.parametrize(("n", "k"), [(256, 1024), (100, 1000), (64, 12288)])
def test_tiles_change_no_accumulator(gpu, kind, n, k):
    from tests.kernels.hopper.accumulators import accumulators

    x = make(kind, 1, 33, k).cuda()
    weight = make("paired" if kind == "cancelling" else "normal", 2, n, k).cuda()
    found = [accumulators(x, weight, tile) for tile in TILES]
    for tile, other in zip(TILES, found, strict=True):
        assert torch.equal(found[0].view(torch.int32), other.view(torch.int32)), tile
