"""Every kernel of the hybrid families beside its plain torch twin, on awkward sizes."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.hybrid import (
    EXPERTS,
    LAYERS,
    Layer,
    guarded_f32,
    no_steps,
    same_bits32,
    scattered_steps,
    slots_of,
    untouched,
)
from tests.kernels.cpu.test_ops import close
from tests.kernels.cpu.values import guarded, make, same_bits

ROWS = (1, 2, 5, 17)
ROUNDOFF = 2.0**-24


def within(got, exact, allowed):
    assert bool(exact.isfinite().all())
    assert bool(exact.ne(0).any())
    assert bool(((got.double() - exact.double()).abs() <= allowed).all())


@pytest.mark.parametrize("dim", (64, 67, 100, 576))
def test_norms_with_a_one_plus_weight(cpu, module, dim):
    for rows in ROWS:
        x, delta = make("normal", 1, rows, dim), make("normal", 3, rows, dim)
        weight, y, total = make("normal", 2, dim), guarded(rows, dim), guarded(rows, dim)
        given = {"weight": weight, "eps": 1e-5, "weight_form": "one_plus"}
        naive = module("naive.norm")
        cpu.functions["norm.rms_norm"](x=x, y=y.tensor, **given)()
        close(y.check(), naive.rms_norm(x=x, **given))
        assert not same_bits(y.tensor, naive.rms_norm(x=x, weight=weight, eps=1e-5))
        cpu.functions["norm.head_norm"](x=x, y=y.tensor, **given)()
        close(y.check(), naive.head_norm(x=x, **given))
        cpu.functions["norm.add_rms_norm"](
            stream=x, delta=delta, total=total.tensor, y=y.tensor, **given
        )()
        close(y.check(), naive.add_rms_norm(stream=x, delta=delta, **given)[1])


def test_a_norm_of_another_weight_form_is_refused(cpu):
    x = make("normal", 1, 2, 8)
    with pytest.raises(ValueError, match="weight_form is 'none'"):
        cpu.functions["norm.rms_norm"](
            x=x, weight=x[0], y=torch.empty_like(x), eps=1e-6, weight_form="none"
        )


@pytest.mark.parametrize("layer", LAYERS)
def test_gdn_gates(cpu, module, layer):
    for rows in ROWS:
        ba = 6 * make("normal", 1, rows, 2 * layer.heads)
        decay, beta = guarded_f32(rows, layer.heads), guarded_f32(rows, layer.heads)
        cpu.functions["gates.gdn_gates"](
            ba=ba, **layer.gates(), decay=decay.tensor, beta=beta.tensor
        )()
        want = module("naive.gates").gdn_gates(ba=ba, **layer.gates())
        # exp, 1 + u, the series, the product: each within an ulp or two of its own.
        within(decay.check(), want[0], 16 * ROUNDOFF * want[0].abs())
        within(beta.check(), want[1], 8 * ROUNDOFF * want[1].abs())


def test_gdn_gates_at_the_ends_of_the_range(cpu):
    """Softplus neither overflows nor loses its small values; a NaN stays one."""
    a = torch.tensor([0.0, 3e38, -3e38, 100.0, -100.0, -80.0, float("nan"), 20.5])
    ba = torch.cat((torch.zeros(8), a)).bfloat16()[None]
    zeros = torch.zeros(8, dtype=torch.bfloat16)
    decay, beta = guarded_f32(1, 8), guarded_f32(1, 8)
    cpu.functions["gates.gdn_gates"](
        ba=ba, a_log=zeros, dt_bias=zeros, decay=decay.tensor, beta=beta.tensor
    )()
    want = -torch.nn.functional.softplus(ba[0, 8:].double(), threshold=1e9)
    small = torch.log1p(ba[0, 8:].double().exp())
    want = torch.where(ba[0, 8:] < 0, -small, want).float()
    got = decay.check()[0]
    assert bool(((got - want).abs() <= 4 * 2.0**-23 * want.abs() + 2.0**-149)[:6].all())
    assert bool(got[6].isnan())
    assert float(got[7]) == pytest.approx(-20.5)
    assert beta.check().tolist() == [[0.5] * 8]


def assert_only_named_rows_written(given):
    steps, named = given["steps"], given["step_rows"].tolist()
    assert untouched(steps) == [row not in named for row in range(len(steps))]


@pytest.mark.parametrize("layer", LAYERS)
def test_conv1d_update(cpu, module, layer):
    for rows in ROWS:
        x, given, y = layer.qkvz(rows), layer.conv(), guarded_f32(rows, layer.channels)
        slots = slots_of(rows)
        given |= scattered_steps(given["conv"], rows)
        want, windows, steps = module("naive.conv").conv1d_update(x=x, slots=slots, **given)
        cpu.functions["conv.conv1d_update"](x=x, slots=slots, y=y.tensor, **given)()
        assert same_bits32(given["conv"], windows)
        assert_only_named_rows_written(given)
        written = [row for row, empty in enumerate(untouched(given["steps"])) if not empty]
        assert same_bits32(given["steps"][written], steps[written])
        within(y.check(), want, 2.0**-20 * (1 + want.abs()))


@pytest.mark.parametrize("layer", LAYERS)
def test_l2_norm(cpu, module, layer):
    for rows in ROWS:
        x, y = layer.qkv(rows), guarded_f32(rows, layer.channels)
        cpu.functions["conv.l2_norm"](x=x, y=y.tensor, **layer.norm())()
        want = module("naive.conv").l2_norm(x=x, **layer.norm())
        within(y.check(), want, 2.0**-20 * want.abs())
        normed = 2 * layer.k_heads * layer.dk
        assert same_bits32(y.tensor[:, normed:], x[:, normed:])


@pytest.mark.parametrize("layer", LAYERS)
def test_gdn_recurrence(cpu, module, layer):
    for rows in ROWS:
        given, h, y = (
            layer.recurrence(rows),
            layer.states(),
            guarded_f32(rows, layer.heads * layer.dv),
        )
        slots = slots_of(rows)
        given |= scattered_steps(h, rows)
        want, states, steps = module("naive.delta").gdn_recurrence(h=h, slots=slots, **given)
        before = h.clone()
        cpu.functions["delta.gdn_recurrence"](h=h, slots=slots, y=y.tensor, **given)()
        # Each of a row's 2 dk operations rounds values of the size of a state's, some five here.
        allowed = 4 * rows * layer.dk * ROUNDOFF * (5 + want.abs().max())
        within(y.check(), want, allowed)
        within(h, states, allowed)
        assert_only_named_rows_written(given)
        written = [row for row, empty in enumerate(untouched(given["steps"])) if not empty]
        within(given["steps"][written], steps[written], allowed)
        unused = [slot for slot in range(layer.slots) if slot not in slots.tolist()]
        assert same_bits32(h[unused], before[unused])
        assert not same_bits32(h, before)


@pytest.mark.parametrize("layer", LAYERS)
def test_gated_rms_norm(cpu, module, layer):
    for rows in ROWS:
        x = layer.recurrence(rows)["qkv"][:, -layer.heads * layer.dv :].contiguous()
        y = guarded(rows, layer.heads * layer.dv)
        cpu.functions["gated_norm.gated_rms_norm"](x=x, y=y.tensor, **layer.gated(rows))()
        close(y.check(), module("naive.gated_norm").gated_rms_norm(x=x, **layer.gated(rows)), 0.02)


@pytest.mark.parametrize("slot", (-1, 5, 10_000))
def test_a_slot_outside_the_pool_is_nan_and_changes_no_state(cpu, slot):
    layer = Layer(k_heads=1, heads=2, dk=16, dv=17)
    slots = torch.tensor([1, slot, 2], dtype=torch.int32)
    others = torch.tensor([1, 2], dtype=torch.int32)
    given, h, conv = layer.recurrence(3), layer.states(), layer.conv()
    y, out = guarded_f32(3, 34), guarded_f32(3, layer.channels)
    left, gone = scattered_steps(h, 3), scattered_steps(conv["conv"], 3)
    for kept in (left, gone):
        kept["step_rows"] = torch.tensor([0, 1, 2], dtype=torch.int32)
    cpu.functions["delta.gdn_recurrence"](h=h, slots=slots, y=y.tensor, **left, **given)()
    cpu.functions["conv.conv1d_update"](
        x=layer.qkvz(3), slots=slots, y=out.tensor, **gone, **conv
    )()
    for kept, state in ((left, h), (gone, conv["conv"])):
        assert untouched(kept["steps"]) == [False, True, False, True, True]
        assert same_bits32(kept["steps"][[0, 2]], state[[1, 2]])
    for rows in (y.check(), out.check()):
        assert rows.isnan().all(-1).tolist() == [False, True, False]
    rest, again = layer.states(), layer.conv()
    kept = {
        name: value[[0, 2]] if isinstance(value, torch.Tensor) else value
        for name, value in given.items()
    }
    cpu.functions["delta.gdn_recurrence"](
        h=rest, slots=others, y=torch.empty(2, 34), **no_steps(rest, 2), **kept
    )()
    again |= no_steps(again["conv"], 2)
    cpu.functions["conv.conv1d_update"](
        x=layer.qkvz(3)[[0, 2]], slots=others, y=torch.empty(2, layer.channels), **again
    )()
    assert same_bits32(h, rest)
    assert same_bits32(conv["conv"], again["conv"])


@pytest.mark.parametrize(("heads", "head_dim"), ((3, 64), (2, 67), (5, 10)))
def test_split_heads_and_concat_move_bits(cpu, module, heads, head_dim):
    naive = module("naive.split")
    for rows in ROWS:
        both = make("any_bits", 1, rows, 2 * heads * head_dim)
        first, second = guarded(rows, heads * head_dim), guarded(rows, heads * head_dim)
        cpu.functions["split.split_heads"](
            both=both, first=first.tensor, second=second.tensor, head_dim=head_dim
        )()
        want = naive.split_heads(both=both, head_dim=head_dim)
        assert same_bits(first.check(), want[0])
        assert same_bits(second.check(), want[1])
        narrow, y = make("any_bits", 2, rows, 7), guarded(rows, heads * head_dim + 7)
        cpu.functions["split.concat"](first=first.tensor, second=narrow, y=y.tensor)()
        assert same_bits(y.check(), naive.concat(first=first.tensor, second=narrow))


@pytest.mark.parametrize("dim", (64, 67, 576))
def test_sigmoid_gate_mul(cpu, module, dim):
    for rows in ROWS:
        x, gate, y = (
            make("normal", 1, rows, dim),
            4 * make("normal", 2, rows, dim),
            guarded(rows, dim),
        )
        cpu.functions["gates.sigmoid_gate_mul"](x=x, gate=gate, y=y.tensor)()
        close(y.check(), module("naive.gates").sigmoid_gate_mul(x=x, gate=gate))


@pytest.mark.parametrize("size", EXPERTS)
def test_top_k(cpu, module, size):
    for rows in ROWS:
        logits = make("normal", 1, rows, size.experts)
        weights = guarded_f32(rows, size.count)
        ids = torch.full((rows, size.count), -9, dtype=torch.int32)
        cpu.functions["router.top_k"](
            logits=logits, weights=weights.tensor, ids=ids, count=size.count
        )()
        want = module("naive.router").top_k(logits=logits, count=size.count)
        assert torch.equal(ids, want[1])
        within(weights.check(), want[0], 2.0**-20 * want[0])


def test_top_k_takes_the_lower_id_of_a_tie_and_a_nan_last(cpu):
    logits = torch.zeros(4, 19).bfloat16()
    logits[0, [3, 17, 9]] = 1.0
    logits[2, 5] = float("nan")
    logits[3] = -float("inf")
    logits[3, 18] = 0.0
    weights, ids = guarded_f32(4, 4), torch.full((4, 4), -9, dtype=torch.int32)
    cpu.functions["router.top_k"](logits=logits, weights=weights.tensor, ids=ids, count=4)()
    assert ids.tolist() == [[3, 9, 17, 0], [0, 1, 2, 3], [0, 1, 2, 3], [18, 0, 1, 2]]
    assert weights.check().isnan().all(-1).tolist() == [False, False, True, False]
    assert weights.tensor[1].tolist() == [0.25] * 4
    assert weights.tensor[3].tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("size", EXPERTS)
def test_experts(cpu, module, size):
    naive = module("naive.experts")
    for rows in ROWS:
        ids = size.chosen(rows)["ids"]
        for func, x, weight, n in (
            ("expert_gate_up", size.x(rows), size.gate_up(), 2 * size.inter),
            ("expert_down", size.act(rows), size.down(), size.hidden),
        ):
            y = guarded(rows * size.count, n)
            cpu.functions[f"experts.{func}"](x=x, ids=ids, weight=weight, y=y.tensor)()
            want = getattr(naive, func)(x=x, ids=ids, weight=weight)
            wrong = (y.check().double() - want.double()).abs()
            assert bool((wrong <= 2.0**-8 * want.double().abs() + 2.0**-14).all())
            assert float((y.tensor != want).double().mean()) < 0.02
            flat = guarded(rows * size.count, n)
            cpu.functions[f"experts.{func}"](
                x=x, ids=ids, weight=weight.flatten(0, 1), y=flat.tensor
            )()
            assert same_bits(flat.check(), y.tensor)


def test_an_id_that_is_no_experts_is_nan(cpu):
    size = EXPERTS[1]
    ids = torch.tensor([[0, -1, 12], [13, 1, 2]], dtype=torch.int32)
    y = guarded(6, size.hidden)
    cpu.functions["experts.expert_down"](x=size.act(2), ids=ids, weight=size.down(), y=y.tensor)()
    assert y.check().isnan().all(-1).tolist() == [False, True, False, True, False, False]
    assert y.tensor.isnan().any(-1).tolist() == [False, True, False, True, False, False]


@pytest.mark.parametrize("size", EXPERTS)
def test_blend(cpu, module, size):
    for rows in ROWS:
        given = {
            "rows": make("normal", 1, rows * size.count, size.hidden),
            "weights": size.chosen(rows)["weights"],
            "shared": make("normal", 2, rows, size.hidden),
            "shared_gate": make("normal", 3, rows, 1),
        }
        y = guarded(rows, size.hidden)
        cpu.functions["blend.blend"](y=y.tensor, **given)()
        want = module("naive.blend").blend(**given)
        wrong = (y.check().double() - want.double()).abs()
        assert bool((wrong <= 2.0**-7 * want.double().abs() + 2.0**-18).all())
        assert float((y.tensor != want).double().sum()) <= 1 + 0.01 * y.tensor.numel()
