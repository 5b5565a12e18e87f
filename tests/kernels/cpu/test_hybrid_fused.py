"""Each fused kernel of the hybrid families gives the bytes of the kernels it replaces.

These are the microtests that the rules of FUSIONS.toml name; states are compared too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.kernels.cpu.hybrid import (
    EXPERTS,
    LAYERS,
    guarded_f32,
    same_bits32,
    scattered_steps,
    slots_of,
    untouched,
)
from tests.kernels.cpu.test_fused import _of_kind, _rope_then_write, equal
from tests.kernels.cpu.values import CLASSES, SOUND, guarded, make, same_bits

ROWS = (1, 2, 5, 17)


def equal32(kind, fused, *one_by_one):
    """Equal bytes of float32 outputs; and for classes of finite results, finite and not all 0."""
    for got, want in zip(fused, one_by_one, strict=True):
        assert same_bits32(got, want)
        assert kind not in SOUND or bool(got.isfinite().all())
        assert kind not in SOUND or kind == "paired" or bool(got.ne(0).any())


def _layers(kind):
    return [replace(layer, kind=kind) for layer in LAYERS]


def _experts(kind):
    return [replace(size, kind=kind) for size in EXPERTS]


@pytest.mark.parametrize("kind", CLASSES)
def test_linear_gates(cpu, kind):
    for layer in _layers(kind):
        for rows in ROWS:
            x, weight = make(kind, 1, rows, 67), make("cancelling", 2, 2 * layer.heads, 67)
            ba = guarded(rows, 2 * layer.heads)
            outputs = [guarded_f32(rows, layer.heads) for _ in range(4)]
            cpu.functions["linear.linear"](x=x, weight=weight, bias=None, y=ba.tensor)()
            cpu.functions["gates.gdn_gates"](
                ba=ba.check(), **layer.gates(), decay=outputs[0].tensor, beta=outputs[1].tensor
            )()
            cpu.functions["gates.linear_gates"](
                x=x, weight=weight, **layer.gates(),
                decay=outputs[2].tensor, beta=outputs[3].tensor,
            )()  # fmt: skip
            decay, beta, fused_decay, fused_beta = (output.check() for output in outputs)
            assert same_bits32(fused_decay, decay)
            assert same_bits32(fused_beta, beta)
            assert kind not in SOUND or bool(decay.isfinite().all())


@pytest.mark.parametrize("kind", CLASSES)
def test_conv_l2_norm(cpu, kind):
    for layer in _layers(kind):
        for rows in ROWS:
            x, slots, alone, together = layer.qkvz(rows), slots_of(rows), layer.conv(), layer.conv()
            slots[rows // 2] = -1 if rows > 2 else 0
            mid, y, fused = (guarded_f32(rows, layer.channels) for _ in range(3))
            alone |= scattered_steps(alone["conv"], rows)
            together |= scattered_steps(together["conv"], rows)
            cpu.functions["conv.conv1d_update"](x=x, slots=slots, y=mid.tensor, **alone)()
            cpu.functions["conv.l2_norm"](x=mid.check(), y=y.tensor, **layer.norm())()
            cpu.functions["conv.conv_l2_norm"](
                x=x, slots=slots, y=fused.tensor, **together, **layer.norm()
            )()
            assert same_bits32(fused.check(), y.check())
            assert same_bits32(together["conv"], alone["conv"])
            assert same_bits32(together["steps"], alone["steps"])
            assert not all(untouched(alone["steps"]))
            assert kind not in SOUND or bool(fused.tensor[0].isfinite().all())
            assert not same_bits32(alone["conv"], layer.conv()["conv"])


@pytest.mark.parametrize("kind", CLASSES)
def test_recurrence_norm(cpu, kind):
    for layer in _layers(kind):
        for rows in ROWS:
            given, slots = layer.recurrence(rows), slots_of(rows)
            slots[rows // 2] = 99 if rows > 2 else 0
            alone, together = layer.states(), layer.states()
            left, kept = (scattered_steps(alone, rows) for _ in range(2))
            core = guarded_f32(rows, layer.heads * layer.dv)
            y, fused = (guarded(rows, layer.heads * layer.dv) for _ in range(2))
            cpu.functions["delta.gdn_recurrence"](
                h=alone, slots=slots, y=core.tensor, **left, **given
            )()
            cpu.functions["gated_norm.gated_rms_norm"](
                x=core.check(), y=y.tensor, **layer.gated(rows)
            )()
            cpu.functions["delta.recurrence_norm"](
                h=together, slots=slots, y=fused.tensor, **kept, **given, **layer.gated(rows)
            )()
            assert same_bits(fused.check(), y.check())
            assert same_bits32(together, alone)
            assert same_bits32(kept["steps"], left["steps"])
            assert not all(untouched(left["steps"]))
            assert not same_bits32(alone, layer.states())
            assert kind != "normal" or bool(fused.tensor[0].isfinite().all())


@pytest.mark.parametrize("kind", CLASSES)
def test_router_top_k(cpu, kind):
    for size in _experts(kind):
        for rows in ROWS:
            x, weight, logits = size.x(rows), size.router(), guarded(rows, size.experts)
            weights = [guarded_f32(rows, size.count) for _ in range(2)]
            ids = [torch.full((rows, size.count), -9, dtype=torch.int32) for _ in range(2)]
            cpu.functions["linear.linear"](x=x, weight=weight, bias=None, y=logits.tensor)()
            cpu.functions["router.top_k"](
                logits=logits.check(), weights=weights[0].tensor, ids=ids[0], count=size.count
            )()
            cpu.functions["router.router_top_k"](
                x=x, weight=weight, weights=weights[1].tensor, ids=ids[1], count=size.count
            )()
            equal32(kind, [weights[1].check()], weights[0].check())
            assert torch.equal(*ids)
            assert all(len(set(row)) == size.count for row in ids[0].tolist())
            assert 0 <= int(ids[0].min()) <= int(ids[0].max()) < size.experts


@pytest.mark.parametrize("kind", CLASSES)
def test_expert_gate_up_silu(cpu, kind):
    for size in _experts(kind):
        for rows in ROWS:
            x, ids, weight = size.x(rows), size.chosen(rows)["ids"], size.gate_up()
            ids[-1, -1] = size.experts if rows > 2 else 0
            pairs = rows * size.count
            both, y, fused = (guarded(pairs, n) for n in (2 * size.inter, size.inter, size.inter))
            given = {"x": x, "ids": ids, "weight": weight}
            cpu.functions["experts.expert_gate_up"](**given, y=both.tensor)()
            cpu.functions["activation.silu_mul"](gate_up=both.check(), y=y.tensor)()
            cpu.functions["experts.gate_up_silu"](**given, y=fused.tensor)()
            assert same_bits(fused.check(), y.check())
            assert kind not in SOUND or bool(fused.tensor[:-1].isfinite().all())


def _one_by_one(cpu, size, rows, given, shared):
    """expert_down, both linears of the shared expert, blend: all that the fused kernels replace."""
    routed, own, gate, y = (
        guarded(rows * size.count, size.hidden), guarded(rows, size.hidden),
        guarded(rows, 1), guarded(rows, size.hidden),
    )  # fmt: skip
    linear = cpu.functions["linear.linear"]
    inputs = {name: given[name] for name in ("x", "ids", "weight")}
    cpu.functions["experts.expert_down"](**inputs, y=routed.tensor)()
    linear(x=shared["shared_x"], weight=shared["shared_weight"], bias=None, y=own.tensor)()
    linear(x=shared["gate_x"], weight=shared["gate_weight"], bias=None, y=gate.tensor)()
    edges = {"shared": own.check(), "shared_gate": gate.check()}
    cpu.functions["blend.blend"](
        rows=routed.check(), weights=given["weights"], **edges, y=y.tensor
    )()
    return edges, y.check()


@pytest.mark.parametrize("kind", CLASSES)
def test_down_blend(cpu, kind):
    for size in _experts(kind):
        for rows in (*ROWS, 70):
            given = {"x": size.act(rows), "weight": size.down(), **size.chosen(rows)}
            given["ids"][-1, -1] = -1 if rows > 2 else 0
            shared = size.shared(rows)
            edges, y = _one_by_one(cpu, size, rows, given, shared)
            fused, whole = guarded(rows, size.hidden), guarded(rows, size.hidden)
            cpu.functions["down_blend.down_blend"](**given, **edges, y=fused.tensor)()
            cpu.functions["down_blend.shared_down_blend"](**given, **shared, y=whole.tensor)()
            assert same_bits(fused.check(), y)
            assert same_bits(whole.check(), y)
            assert kind not in SOUND or bool(y[0].isfinite().all())
            assert kind != "normal" or bool(y[0].ne(0).any())


def test_the_blends_order_shows(cpu):
    """Experts that cancel leave what rounding left: there, another order gives other bytes."""
    rows, size = 5, replace(EXPERTS[2], experts=16)
    half = size.down()[:8]
    given = {
        "x": make("normal", 1, rows, size.inter).repeat_interleave(8, dim=0),
        "weight": torch.cat((half, -half)),
        "weights": torch.full((rows, 8), 0.1234),
    }
    shared = {name: torch.zeros_like(value) for name, value in size.shared(rows).items()}
    written = []
    for ids in ((0, 1, 2, 3, 9, 10, 11, 8), (8, 11, 10, 9, 3, 2, 1, 0), (0, 8, 1, 9, 2, 10, 3, 11)):
        chosen = torch.tensor([ids] * rows, dtype=torch.int32)
        _, y = _one_by_one(cpu, size, rows, {**given, "ids": chosen}, shared)
        fused = guarded(rows, size.hidden)
        cpu.functions["down_blend.shared_down_blend"](
            **given, ids=chosen, **shared, y=fused.tensor
        )()
        assert same_bits(fused.check(), y)
        written.append(y)
    assert float((written[0] != written[1]).double().mean()) > 0.3
    assert float((written[0] != written[2]).double().mean()) > 0.3


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("dim", (64, 67))
def test_add_rms_norm_one_plus(cpu, kind, dim):
    for rows in ROWS:
        stream, delta = make(kind, 1, rows, dim), make(kind, 2, rows, dim)
        given = {"weight": make("normal", 3, dim), "eps": 1e-6, "weight_form": "one_plus"}
        total, y, fused_total, fused_y = (guarded(rows, dim) for _ in range(4))
        cpu.functions["residual.residual_add"](stream=stream, delta=delta, y=total.tensor)()
        cpu.functions["norm.rms_norm"](x=total.check(), y=y.tensor, **given)()
        cpu.functions["norm.add_rms_norm"](
            stream=stream, delta=delta, total=fused_total.tensor, y=fused_y.tensor, **given
        )()
        equal(kind, (fused_total.check(), fused_y.check()), total.tensor, y.check())


@pytest.mark.parametrize("kind", CLASSES)
def test_norm_rope_write_one_plus(cpu, kind):
    """With a part of each head rotated only, as the hybrids do."""
    for cache in _of_kind(kind):
        half = cache.head_dim // 8 + 1
        for rows in (1, 5):
            q, k, v, rope = cache.q(rows), cache.k(rows), cache.v(rows), cache.rope(rows)
            rope |= {name: rope[name][:, :half].contiguous() for name in ("cos", "sin")}
            weights = make("normal", 31, cache.head_dim), make("normal", 32, cache.head_dim)
            where, pools, fused_pools = cache.where(rows), cache.pools(), cache.pools()
            normed = [guarded(*q.shape), guarded(*k.shape)]
            for x, weight, y in zip((q, k), weights, normed, strict=True):
                cpu.functions["norm.head_norm"](
                    x=x, weight=weight, y=y.tensor, eps=1e-6, weight_form="one_plus"
                )()
            qn, kn = (y.check() for y in normed)
            alone = _rope_then_write(cpu, qn, kn, v, rope, where, pools, cache.head_dim)
            q_out = guarded(*q.shape)
            cpu.functions["fused.norm_rope_write"](
                q=q, k=k, v=v, q_weight=weights[0], k_weight=weights[1], q_eps=1e-6, k_eps=1e-6,
                **rope | where, **fused_pools, q_out=q_out.tensor,
                q_weight_form="one_plus", k_weight_form="one_plus",
            )()  # fmt: skip
            equal(kind, (q_out.check(), *fused_pools.values()), *alone)
