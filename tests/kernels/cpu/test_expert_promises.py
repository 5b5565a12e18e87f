"""A row through its experts gives the same bytes however its neighbours are routed.

Neighbours share all experts with it, or none, name no expert, or are NaN; there are more of them
than pass together over an expert's tiles; and the experts have other numbers.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kernels.cpu.hybrid import EXPERTS
from tests.kernels.cpu.values import same_bits

SIZES = (*EXPERTS[:3], replace(EXPERTS[0], hidden=576, inter=128))
ROWS = 131
"""Of three choices each, some experts get more than the 64 that pass together."""
PLACES = (0, 63, 64, 130)


def through(cpu, size, x, chosen, gate_up, down, fused):
    """The blended rows of x [rows, hidden] through these choices."""
    f, rows = cpu.functions, len(x)
    shared = {
        name: value[:1].expand(rows, -1).contiguous() if name.endswith("_x") else value
        for name, value in size.shared(1).items()
    }
    act = torch.empty(rows * size.count, size.inter, dtype=torch.bfloat16)
    y = torch.empty(rows, size.hidden, dtype=torch.bfloat16)
    ids, weights = chosen["ids"], chosen["weights"]
    if fused:
        f["experts.gate_up_silu"](x=x, ids=ids, weight=gate_up, y=act)()
        f["down_blend.shared_down_blend"](
            x=act, ids=ids, weight=down, weights=weights, **shared, y=y
        )()
        return y
    both = torch.empty(len(act), 2 * size.inter, dtype=torch.bfloat16)
    routed = torch.empty(len(act), size.hidden, dtype=torch.bfloat16)
    edges = {name: torch.empty(rows, n, dtype=torch.bfloat16) for name, n in
             (("shared", size.hidden), ("shared_gate", 1))}  # fmt: skip
    f["experts.expert_gate_up"](x=x, ids=ids, weight=gate_up, y=both)()
    f["activation.silu_mul"](gate_up=both, y=act)()
    f["experts.expert_down"](x=act, ids=ids, weight=down, y=routed)()
    for name, given in (("shared", "shared"), ("shared_gate", "gate")):
        x_of, weight = shared[f"{given}_x"], shared[f"{given}_weight"]
        f["linear.linear"](x=x_of, weight=weight, bias=None, y=edges[name])()
    f["blend.blend"](rows=routed, weights=weights, **edges, y=y)()
    return y


@pytest.fixture(scope="module", params=SIZES, ids=lambda s: f"{s.experts}of{s.hidden}")
def alone(cpu, request):
    """A row by itself: its input, its choices, the experts' weights and what comes out."""
    size = request.param
    x, chosen, gate_up, down = size.x(1), size.chosen(1), size.gate_up(), size.down()
    y = through(cpu, size, x, chosen, gate_up, down, fused=True)
    assert bool(y.isfinite().all())
    assert bool(y.ne(0).any())
    return size, x, chosen, gate_up, down, y


def routed(size, own, kind):
    """Choices of ROWS neighbours."""
    ids = own.expand(ROWS, -1).clone()
    if kind == "the same experts, in the other order":
        ids = ids.flip(-1).contiguous()
    elif kind == "other experts":
        others = [expert for expert in range(size.experts) if expert not in own.tolist()[0]]
        ids[:] = torch.tensor((others * size.count)[: size.count], dtype=torch.int32)
    elif kind == "no expert":
        ids[::2], ids[1::2] = -1, size.experts
    elif kind == "any":
        ids = size.chosen(ROWS)["ids"]
    return ids


KINDS = ("the same experts", "the same experts, in the other order", "other experts", "no expert",
         "any")  # fmt: skip


@pytest.mark.parametrize("fused", (True, False), ids=("fused", "one by one"))
@pytest.mark.parametrize("values", ("normal", "nan"))
@pytest.mark.parametrize("kind", KINDS)
def test_the_neighbours_routing_does_not_matter(cpu, alone, kind, values, fused):
    size, x, chosen, gate_up, down, want = alone
    others = size.x(ROWS) if values == "normal" else torch.full_like(size.x(ROWS), torch.nan)
    for place in PLACES:
        beside, ids = others.clone(), routed(size, chosen["ids"], kind)
        weights = size.chosen(ROWS)["weights"]
        beside[place], ids[place], weights[place] = x[0], chosen["ids"][0], chosen["weights"][0]
        given = {"ids": ids, "weights": weights}
        y = through(cpu, size, beside, given, gate_up, down, fused)
        assert same_bits(y[place : place + 1], want), place
        rest = torch.arange(ROWS) != place
        is_nan = values == "nan" or kind == "no expert"
        assert bool(y[rest].isnan().all()) if is_nan else bool(y[rest].isfinite().all())


def test_the_experts_numbers_do_not_matter(cpu, alone):
    """Experts are passed over in the order of their numbers, but each writes rows of its own."""
    size, x, chosen, gate_up, down, want = alone
    number = torch.randperm(size.experts, generator=torch.Generator().manual_seed(5))
    moved = {**chosen, "ids": number.int()[chosen["ids"].long()]}
    assert size.experts == 1 or not torch.equal(moved["ids"], chosen["ids"])
    order = number.argsort()
    for fused in (True, False):
        y = through(cpu, size, x, moved, gate_up[order], down[order], fused)
        assert same_bits(y, want)


@pytest.mark.parametrize(("order", "total"), (([0, 1, 2], 0.0), ([0, 2, 1], 1.0)))
def test_the_sum_is_in_the_order_of_the_choices(cpu, order, total):
    """Not of the experts' numbers: 2^30 swallows the 1 that is added before -2^30."""
    values = torch.tensor([2.0**30, 1.0, -(2.0**30)]).bfloat16()
    weights, ids = torch.ones(1, 3), torch.tensor([order], dtype=torch.int32)
    zeros = {name: torch.zeros(1, n, dtype=torch.bfloat16) for name, n in
             (("shared", 19), ("shared_gate", 1))}  # fmt: skip
    down = values.view(3, 1, 1).expand(3, 19, 1).contiguous()
    one, fused = (torch.empty(1, 19, dtype=torch.bfloat16) for _ in range(2))
    rows = down[order].squeeze(-1).contiguous()
    cpu.functions["blend.blend"](rows=rows, weights=weights, **zeros, y=one)()
    cpu.functions["down_blend.down_blend"](
        x=torch.ones(3, 1).bfloat16(), ids=ids, weight=down, weights=weights, **zeros, y=fused
    )()
    assert one.tolist() == fused.tolist() == [[total] * 19]
