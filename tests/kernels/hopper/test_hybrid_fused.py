"""The hybrids' fused kernels against the chains that they replace."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.hybrid import Layer, slots_of
from tests.kernels.cpu.values import CLASSES, make
from tests.kernels.hopper.launched import Out, launched, same

pytestmark = pytest.mark.gpu
F32, I32 = torch.float32, torch.int32
LAYERS = (
    Layer(k_heads=2, heads=4, dk=128, dv=128),
    Layer(k_heads=2, heads=6, dk=26, dv=22),
    Layer(k_heads=1, heads=3, dk=7, dv=19),
    Layer(k_heads=1, heads=2, dk=1, dv=1),
)
ROWS = (1, 5, 17)


def _steps(state: torch.Tensor, rows: int) -> dict[str, torch.Tensor]:
    """Two of the rows leave their states behind."""
    kept = torch.full((rows,), -1, dtype=I32)
    kept[0], kept[rows // 2] = 1, 0
    return {"steps": torch.full((2, state.shape[1]), 3.0), "step_rows": kept}


@pytest.mark.parametrize(
    "kind", ("normal", "mixed_exponents", "signed_zeros", "sparse_nan_and_inf")
)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_conv_l2_norm(gpu, kind, layer, rows):
    x = make(kind, 41, rows, layer.width)
    shared = layer.conv() | {"slots": slots_of(rows)}
    shared |= _steps(shared["conv"], rows)
    out = {"y": Out(rows, layer.channels, dtype=F32)}
    fused = launched(gpu.functions["conv.conv_l2_norm"], out, x=x, **shared, **layer.norm())
    out = {"y": Out(rows, layer.channels, dtype=F32)}
    conv = launched(gpu.functions["conv.conv1d_update"], out, x=x, **shared)
    out = {"y": Out(rows, layer.channels, dtype=F32)}
    alone = launched(gpu.functions["conv.l2_norm"], out, x=conv["y"], **layer.norm())
    assert same(fused["y"], alone["y"])
    assert same(fused["conv"], conv["conv"])
    assert same(fused["steps"], conv["steps"])
    assert not same(fused["conv"], shared["conv"])


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("rows", ROWS)
def test_recurrence_norm(gpu, layer, rows):
    h = layer.states()
    shared = layer.recurrence(rows) | {"h": h, "slots": slots_of(rows)} | _steps(h, rows)
    gated = layer.gated(rows)
    values = layer.heads * layer.dv
    fused = launched(
        gpu.functions["delta.recurrence_norm"], {"y": Out(rows, values)}, **shared, **gated
    )
    core = launched(
        gpu.functions["delta.gdn_recurrence"], {"y": Out(rows, values, dtype=F32)}, **shared
    )
    alone = launched(
        gpu.functions["gated_norm.gated_rms_norm"], {"y": Out(rows, values)}, x=core["y"], **gated
    )
    assert same(fused["y"], alone["y"])
    assert same(fused["h"], core["h"])
    assert same(fused["steps"], core["steps"])
    assert bool(fused["y"].isfinite().all())


@pytest.mark.parametrize("kind", tuple(CLASSES))
@pytest.mark.parametrize(("rows", "k", "heads"), [(1, 256, 32), (5, 60, 6), (17, 128, 48)])
def test_linear_gates(gpu, kind, rows, k, heads):
    x, weight = make(kind, 1, rows, k), make("normal", 2, 2 * heads, k)
    gates = {"a_log": make("normal", 3, heads), "dt_bias": make("normal", 4, heads)}

    def outputs() -> dict[str, Out]:
        return {name: Out(rows, heads, dtype=F32) for name in ("decay", "beta")}

    fused = launched(gpu.functions["gates.linear_gates"], outputs(), x=x, weight=weight, **gates)
    ba = launched(
        gpu.functions["linear.linear"], {"y": Out(rows, 2 * heads)}, x=x, weight=weight, bias=None
    )["y"]
    alone = launched(gpu.functions["gates.gdn_gates"], outputs(), ba=ba, **gates)
    assert same(fused["decay"], alone["decay"])
    assert same(fused["beta"], alone["beta"])


ROUTERS = [
    (1, 256, 8, 2048), (16, 128, 4, 512), (5, 7, 3, 60), (3, 1000, 10, 72), (2, 1, 1, 33),
    (40, 33, 2, 96),
]  # fmt: skip
"""Rows, experts, choices, hidden."""


@pytest.mark.parametrize("kind", tuple(CLASSES))
@pytest.mark.parametrize(("rows", "experts", "count", "k"), ROUTERS)
def test_router_top_k(gpu, kind, rows, experts, count, k):
    """Twice: the tiles' counters are zero again after a launch."""
    x, weight = make(kind, 1, rows, k), make("normal", 2, experts, k)

    def outputs() -> dict[str, Out]:
        return {"weights": Out(rows, count, dtype=F32), "ids": Out(rows, count, dtype=I32)}

    logits = launched(
        gpu.functions["linear.linear"], {"y": Out(rows, experts)}, x=x, weight=weight, bias=None
    )["y"]
    alone = launched(gpu.functions["router.top_k"], outputs(), logits=logits, count=count)
    given = {"x": x, "weight": weight, "count": count}
    for _ in range(2):
        fused = launched(gpu.functions["router.router_top_k"], outputs(), **given)
        assert same(fused["weights"], alone["weights"])
        assert same(fused["ids"], alone["ids"])
    assert all(len(set(row)) == count for row in fused["ids"].tolist())


EXPERTS = [(1, 4, 2, 128, 64), (5, 7, 3, 60, 22), (17, 16, 8, 256, 512), (67, 7, 3, 60, 22)]
"""Rows, experts, choices, hidden, inter."""


def _ids(rows: int, experts: int, count: int) -> torch.Tensor:
    """Different experts a row, and one id that is no expert's."""
    seed = torch.Generator().manual_seed(9)
    ids = torch.stack([torch.randperm(experts, generator=seed)[:count] for _ in range(rows)]).int()
    ids[rows // 2, -1] = experts if rows > 2 else ids[rows // 2, -1]
    return ids


@pytest.mark.parametrize("kind", ("normal", "cancelling", "mixed_exponents", "any_bits"))
@pytest.mark.parametrize(("rows", "experts", "count", "k", "inter"), EXPERTS)
def test_expert_gate_up_silu(gpu, kind, rows, experts, count, k, inter):
    x, weight = make(kind, 1, rows, k), make("normal", 2, experts, 2 * inter, k)
    ids = _ids(rows, experts, count)
    pairs = rows * count
    out = {"y": Out(pairs, inter)}
    fused = launched(gpu.functions["experts.gate_up_silu"], out, x=x, ids=ids, weight=weight)
    out = {"y": Out(pairs, 2 * inter)}
    both = launched(gpu.functions["experts.expert_gate_up"], out, x=x, ids=ids, weight=weight)
    alone = launched(
        gpu.functions["activation.silu_mul"], {"y": Out(pairs, inter)}, gate_up=both["y"]
    )
    nan = fused["y"].isnan() & alone["y"].isnan()
    assert same(fused["y"].masked_fill(nan, 0), alone["y"].masked_fill(nan, 0))


@pytest.mark.parametrize("kind", ("normal", "cancelling", "mixed_exponents", "signed_zeros"))
@pytest.mark.parametrize(("wider", "room"), [(2, 1 << 22), (256, 1 << 22), (2, 24 << 10)])
@pytest.mark.parametrize(("rows", "experts", "count", "dim", "k"), EXPERTS)
def test_down_blend(gpu, kind, rows, experts, count, dim, k, wider, room):
    """Both fusions: with the shared expert's products given, and with them computed.

    Little room leaves no parts to few tokens, and takes many in two.
    """
    x, weight = make(kind, 1, rows * count, k), make("normal", 2, experts, dim, k)
    shared = {
        "x": x,
        "ids": _ids(rows, experts, count),
        "weight": weight,
    }
    weights = torch.rand(rows, count, generator=torch.Generator().manual_seed(3))
    gpu.functions["workspace.reserve"](
        room, lambda size: torch.empty(size, dtype=torch.uint8, device="cuda")
    )
    shared_x, gate_x = make(kind, 4, rows, k + wider), make("normal", 5, rows, dim)
    shared_weight, gate_weight = make("normal", 6, dim, k + wider), make("normal", 7, 1, dim)
    out = {"y": Out(rows * count, dim)}
    down = launched(gpu.functions["experts.expert_down"], out, **shared)["y"]
    beside = {
        "shared": (shared_x, shared_weight, dim),
        "shared_gate": (gate_x, gate_weight, 1),
    }
    given = {
        name: launched(
            gpu.functions["linear.linear"], {"y": Out(rows, n)}, x=a, weight=w, bias=None
        )["y"]
        for name, (a, w, n) in beside.items()
    }
    alone = launched(
        gpu.functions["blend.blend"], {"y": Out(rows, dim)}, rows=down, weights=weights, **given
    )["y"]
    one = launched(
        gpu.functions["down_blend.down_blend"],
        {"y": Out(rows, dim)},
        **shared,
        weights=weights,
        **given,
    )["y"]
    both = launched(
        gpu.functions["down_blend.shared_down_blend"],
        {"y": Out(rows, dim)},
        **shared,
        weights=weights,
        shared_x=shared_x,
        shared_weight=shared_weight,
        gate_x=gate_x,
        gate_weight=gate_weight,
    )["y"]
    assert same(one, alone)
    assert same(both, alone)
