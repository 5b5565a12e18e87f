"""Experts whose rows share the reading of their matrices: the bits of a program a row."""

from __future__ import annotations

import importlib

import pytest
import torch

from metpipe.engine.graphs import capture
from tests.kernels.cpu.values import make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
I32 = torch.int32
NEVER = 1 << 30
MOST = 300
"""Rows of a batch: an expert of seven has more than a tile of 64."""
SIZES = [(7, 3, 60, 22), (16, 8, 256, 512), (130, 4, 128, 64)]
"""Experts, choices, hidden, inter."""
CHOICES = ("even", "skewed", "one", "outside")


@pytest.fixture
def grouped(gpu):
    """The module, with room for any list."""
    gpu.functions["workspace.reserve"](
        1 << 24, lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
    )
    return importlib.import_module("metpipe_kernels.hopper.grouped")


def chosen(how: str, rows: int, experts: int, count: int) -> torch.Tensor:
    """i32 [rows, count]. skewed: most rows choose the last expert; outside: some ids are none's."""
    seed = torch.Generator().manual_seed(rows)
    if how == "one":
        return torch.full((rows, count), experts - 1, dtype=I32)
    scores = torch.rand(rows, experts, generator=seed)
    if how == "skewed":
        scores[:, -1] += torch.rand(rows, generator=seed) < 0.9
    ids = scores.topk(count).indices.int()
    if how == "outside":
        ids[::3, -1] = torch.tensor([-1, experts, 1 << 30, -(1 << 31)])[: len(ids[::3])].repeat(
            -(-len(ids[::3]) // 4)
        )[: len(ids[::3])]
    return ids


def listed(ids: torch.Tensor, experts: int, height: int, tiles: int) -> tuple[list, list]:
    """Each tile's expert and its rows, -1 where there is none."""
    flat = [number if 0 <= number < experts else experts for number in ids.flatten().tolist()]
    owners, members = [], []
    for expert in range(experts + 1):
        mine = [row for row, number in enumerate(flat) if number == expert]
        for start in range(0, len(mine), height):
            part = mine[start : start + height]
            owners.append(expert)
            members.append(part + [-1] * (height - len(part)))
    spare = tiles - len(owners)
    assert spare >= 0, "the worst choice of experts needs more tiles"
    return owners + [-1] * spare, members


@pytest.mark.parametrize("height", (16, 64))
@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize(
    ("rows", "experts", "count"), [(1, 1, 1), (16, 256, 8), (67, 7, 3), (700, 7, 3), (300, 64, 10)]
)
def test_lists_hold_each_row_once_in_order(grouped, how, rows, experts, count, height):
    ids = chosen(how, rows, experts, count)
    pairs = rows * count
    tiles = min(pairs, (pairs + (height - 1) * (experts + 1)) // height)
    owners, members = listed(ids, experts, height, tiles)
    room = torch.full((tiles * (1 + height) + 64,), -77, dtype=I32, device="cuda")
    lists = room[:tiles], room[tiles : tiles * (1 + height)]
    bins, block = (
        max(128, 1 << experts.bit_length()),
        min(1024, max(128, 1 << (pairs - 1).bit_length())),
    )
    arguments = (ids.cuda(), *lists, pairs, experts, tiles, bins, height, block)
    launch = grouped.bind(grouped._groups, (experts + 1,), arguments)
    for _ in range(2):
        room.fill_(-77)
        launch()
        assert lists[0].tolist() == owners
        assert lists[1].view(-1, height)[: len(members)].tolist() == members
        assert set(room[tiles * (1 + height) :].tolist()) == {-77}


def run(gpu, name: str, n: int, *, x, ids, weight) -> torch.Tensor:
    out = {"y": Out(ids.numel(), n)}
    return launched(gpu.functions[f"experts.{name}"], out, x=x, ids=ids, weight=weight)["y"]


class Layer:
    """Two matrices of every expert on the GPU, and rows for them."""

    def __init__(self, kind: str, experts: int, count: int, k: int, inter: int) -> None:
        self.count, self.k, self.inter = count, k, inter
        self.x, self.down = make(kind, 1, MOST, k), make(kind, 3, MOST * count, inter)
        self.up = make("normal", 2, experts, 2 * inter, k).cuda()
        self.last = make("normal", 4, experts, k, inter).cuda()

    def all_three(self, gpu, ids: torch.Tensor) -> list[torch.Tensor]:
        rows, inter = ids.shape[0], self.inter
        up = {"x": self.x[:rows], "ids": ids, "weight": self.up}
        down = {"x": self.down[: rows * self.count], "ids": ids, "weight": self.last}
        return [
            run(gpu, "expert_gate_up", 2 * inter, **up),
            run(gpu, "gate_up_silu", inter, **up),
            run(gpu, "expert_down", self.k, **down),
        ]


@pytest.mark.parametrize("kind", ("normal", "cancelling", "mixed_exponents", "any_bits"))
@pytest.mark.parametrize("how", CHOICES)
@pytest.mark.parametrize(("experts", "count", "k", "inter"), SIZES)
def test_bits_are_those_of_a_program_a_row(
    gpu, grouped, monkeypatch, kind, how, experts, count, k, inter
):
    every = range(1, 65) if kind == "cancelling" else (1, 2, 3, 5, 16, 17, 64)
    layer = Layer(kind, experts, count, k, inter)
    for rows in (*every, MOST):
        ids = chosen(how, rows, experts, count)
        found = []
        for least in (NEVER, 1):
            monkeypatch.setattr(grouped, "GROUPED_FROM", least)
            found.append(layer.all_three(gpu, ids))
        for name, alone, together in zip(("gate_up", "silu", "down"), *found, strict=True):
            assert same(alone, together), (name, rows)
            outside = ((ids < 0) | (ids >= experts)).flatten()
            assert bool(together[outside].isnan().all())
            assert kind != "normal" or bool(together[~outside].isfinite().all())


def test_many_rows_are_grouped_and_few_are_not(gpu, grouped):
    weight = torch.zeros(7, 22, 60, dtype=torch.bfloat16, device="cuda")
    for rows, kernel in ((15, "experts"), (16, "grouped_experts")):
        x = torch.zeros(rows * 3, 60, dtype=torch.bfloat16, device="cuda")
        ids = torch.zeros(rows, 3, dtype=I32, device="cuda")
        y = torch.zeros(rows * 3, 22, dtype=torch.bfloat16, device="cuda")
        launch = gpu.functions["experts.expert_down"](x=x, ids=ids, weight=weight, y=y)
        assert launch.kernel == kernel


def test_a_graph_takes_whatever_ids_there_are(gpu, grouped):
    """The host reads no count: one capture serves every choice of experts."""
    experts, count, k, n, rows = 16, 4, 256, 64, 40
    x, weight = make("normal", 1, rows * count, k).cuda(), make("normal", 2, experts, n, k).cuda()
    ids = chosen("even", rows, experts, count).cuda()
    out = Out(rows * count, n)
    replay = capture(
        gpu.functions["experts.expert_down"](x=x, ids=ids, weight=weight, y=out.tensor)
    )
    for how in CHOICES:
        ids.copy_(chosen(how, rows, experts, count))
        replay()
        torch.cuda.synchronize()
        eager = run(gpu, "expert_down", n, x=x.cpu(), ids=ids.cpu(), weight=weight.cpu())
        assert same(out.check(), eager), how
