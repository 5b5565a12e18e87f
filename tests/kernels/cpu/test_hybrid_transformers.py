"""The hybrid kernels beside transformers' own torch functions, in float32, on random inputs.

transformers runs them on values that both read exactly (bf16 values, as float32), so that what
remains is float32's rounding here and there, and one rounding to bf16 where a kernel stores bf16.
"""

from __future__ import annotations

import pytest
import torch

from tests.kernels.cpu.hybrid import EXPERTS, LAYERS, no_steps
from tests.kernels.cpu.values import make

dense = pytest.importorskip("transformers.models.qwen3_5.modeling_qwen3_5")
experts = pytest.importorskip("transformers.models.qwen3_5_moe.modeling_qwen3_5_moe")

ROWS = 9
F32, BF16 = 2.0**-24, 2.0**-8


def assert_within(got, want, allowed):
    assert bool(want.isfinite().all())
    assert float(((got.double() - want.double()).abs() - allowed).max()) <= 0


def config_of(config_class, **keys):
    return config_class(num_hidden_layers=1, vocab_size=8, **keys)


class Given(torch.nn.Module):
    """Stands for a linear: whatever it is asked, its output is this."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, x):
        return self.output


@pytest.mark.parametrize("layer", LAYERS)
def test_conv1d_update(cpu, layer):
    """Nine decode steps of one sequence, from a window that is not empty."""
    x, given = layer.qkvz(ROWS), layer.conv()
    window = given["conv"][:1].view(1, layer.channels, 4).clone()
    taps = given["taps"].float().squeeze(1)
    y = torch.empty(ROWS, layer.channels)
    slots = torch.zeros(ROWS, dtype=torch.int32)
    given |= no_steps(given["conv"], ROWS)
    cpu.functions["conv.conv1d_update"](x=x, slots=slots, y=y, **given)()
    want = [
        dense.causal_conv1d_update(
            x[row, : layer.channels].float().view(1, -1, 1), window, taps, None, "silu"
        ).flatten()
        for row in range(ROWS)
    ]
    assert torch.equal(given["conv"][0].view(-1, 4), window[0])
    want = torch.stack(want)
    # Four products of at most 4 * 4 each, summed; silu's slope is at most 1.1.
    assert_within(y, want, 16 * F32 * (64 + want.abs()))


@pytest.mark.parametrize("layer", LAYERS)
def test_delta_rule_with_its_norms(cpu, layer):
    """l2 norm, recurrence from a state of zeros, states and outputs after nine tokens."""
    qkv, given = layer.qkvz(ROWS)[:, : layer.channels].float().contiguous(), layer.recurrence(ROWS)
    normed, y = torch.empty_like(qkv), torch.empty(ROWS, layer.heads * layer.dv)
    h = torch.zeros(1, layer.heads * layer.dk * layer.dv)
    cpu.functions["conv.l2_norm"](x=qkv, y=normed, **layer.norm())()
    slots = torch.zeros(ROWS, dtype=torch.int32)
    given |= {"qkv": normed, **no_steps(h, ROWS)}
    cpu.functions["delta.gdn_recurrence"](**given, h=h, slots=slots, y=y)()
    keys = layer.k_heads * layer.dk
    q, k, v = qkv.split((keys, keys, layer.heads * layer.dv), dim=-1)
    want, state = dense.torch_recurrent_gated_delta_rule(
        q.view(1, ROWS, layer.k_heads, layer.dk),
        k.view(1, ROWS, layer.k_heads, layer.dk),
        v.view(1, ROWS, layer.heads, layer.dv),
        g=given["decay"][None],
        beta=given["beta"][None],
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )
    # A state's value is a sum of at most nine k (v - m), |k| <= 1; every step rounds it a few
    # times, and m and y add up to dk of them.
    allowed = 8 * ROWS * (layer.dk + 4) * F32 * max(1.0, float(v.abs().max()))
    assert_within(y, want.reshape(ROWS, -1), allowed)
    assert_within(h, state.reshape(1, -1), allowed)


@pytest.mark.parametrize("layer", LAYERS)
def test_gated_delta_net_of_a_whole_layer(cpu, layer):
    """The kernels one after the other against the module, its linears' outputs given to both."""
    config = config_of(
        dense.Qwen3_5TextConfig, hidden_size=16, linear_num_value_heads=layer.heads,
        linear_num_key_heads=layer.k_heads, linear_key_head_dim=layer.dk,
        linear_value_head_dim=layer.dv, layer_types=["linear_attention"],
    )  # fmt: skip
    module = dense.Qwen3_5GatedDeltaNet(config, 0)
    conv, gates, gated = layer.conv(), layer.gates(), layer.gated(ROWS)
    qkvz, ba = layer.qkvz(ROWS), make("normal", 71, ROWS, 2 * layer.heads)
    with torch.no_grad():
        module.conv1d.weight.copy_(conv["taps"])
        module.A_log.copy_(gates["a_log"])
        module.dt_bias.copy_(gates["dt_bias"])
        module.norm.weight.copy_(gated["weight"])
        parts = (
            qkvz[:, : layer.channels], qkvz[:, layer.channels :],
            ba[:, : layer.heads], ba[:, layer.heads :],
        )  # fmt: skip
        names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
        for name, part in zip(names, parts, strict=True):
            setattr(module, name, Given(part.float()[None]))
        module.out_proj = torch.nn.Identity()
        want = module(torch.zeros(1, ROWS, 16))[0]
    f = cpu.functions
    slots = torch.zeros(ROWS, dtype=torch.int32)
    decay, beta = torch.empty(ROWS, layer.heads), torch.empty(ROWS, layer.heads)
    f["gates.gdn_gates"](ba=ba, **gates, decay=decay, beta=beta)()
    conv["conv"].zero_()
    conv |= no_steps(conv["conv"], ROWS)
    qkv = torch.empty(ROWS, layer.channels)
    f["conv.conv_l2_norm"](x=qkvz, slots=slots, y=qkv, **conv, **layer.norm())()
    y = torch.empty(ROWS, layer.heads * layer.dv, dtype=torch.bfloat16)
    h = torch.zeros_like(layer.states())
    gated |= no_steps(h, ROWS)
    given = layer.recurrence(1) | {"qkv": qkv, "decay": decay, "beta": beta}
    f["delta.recurrence_norm"](h=h, slots=slots, y=y, **given, **gated)()
    # Three roundings to bf16; and where a head's values are all small, its norm enlarges float32's
    # roundings of the recurrence by 1 / rms, which eps bounds by 1000.
    assert_within(y, want, 1.02 * 3 * BF16 * want.abs() + 2e-3)
    assert float((y.float() - want).abs().mean()) < BF16 * float(want.abs().mean())


@pytest.mark.parametrize("dim", (64, 67))
def test_norms(cpu, dim):
    x, weight = make("normal", 1, ROWS, dim), make("normal", 2, dim)
    norm = dense.Qwen3_5RMSNorm(dim, eps=1e-6)
    norm.weight.data.copy_(weight)
    y = torch.empty_like(x)
    cpu.functions["norm.rms_norm"](x=x, weight=weight, y=y, eps=1e-6, weight_form="one_plus")()
    want = norm(x.float()).detach()
    assert_within(y, want, 1.01 * BF16 * want.abs())
    bf16 = norm(x).detach()
    assert float((y != bf16).double().mean()) < 0.01


def test_partial_rope_is_mrope_of_text(cpu):
    """Three equal position axes: interleaving them is plain rotation of the first rotary_dim."""
    head_dim, heads, theta = 40, 3, 10000.0
    rope = {
        "rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5,
        "mrope_section": [4, 3, 3], "mrope_interleaved": True,
    }  # fmt: skip
    config = config_of(
        dense.Qwen3_5TextConfig, hidden_size=120, num_attention_heads=heads, head_dim=head_dim,
        num_key_value_heads=1, rope_parameters=rope, layer_types=["full_attention"],
    )  # fmt: skip
    positions = torch.tensor([0, 1, 2, 17, 99, 1000])
    q, k = make("normal", 1, 6, heads * head_dim), make("normal", 2, 6, head_dim)
    cos, sin = dense.Qwen3_5TextRotaryEmbedding(config)(q.float()[None], positions[None])
    wanted = dense.apply_rotary_pos_emb(
        q.float().view(1, 6, heads, head_dim).transpose(1, 2),
        k.float().view(1, 6, 1, head_dim).transpose(1, 2),
        cos,
        sin,
    )
    rotary = int(head_dim * 0.5)
    frequencies = 1.0 / theta ** (torch.arange(0, rotary, 2) / rotary)
    angle = torch.arange(1001)[:, None] * frequencies
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    cpu.functions["rope.rope"](
        q=q, k=k, cos=angle.cos(), sin=angle.sin(), positions=positions.int(),
        head_dim=head_dim, q_out=q_out, k_out=k_out,
    )()  # fmt: skip
    for got, want in zip((q_out, k_out), wanted, strict=True):
        want = want.transpose(1, 2).reshape(6, -1)
        # The angle, up to 1000, is a float32: its sine may be off by 1000 * 2^-24.
        assert_within(got, want, BF16 * want.abs() + 5 * 1000 * 2 * F32)


@pytest.mark.parametrize("size", EXPERTS)
def test_moe_block(cpu, size):
    config = config_of(
        experts.Qwen3_5MoeTextConfig, hidden_size=size.hidden, moe_intermediate_size=size.inter,
        shared_expert_intermediate_size=size.shared_inter, num_experts=size.experts,
        num_experts_per_tok=size.count, layer_types=["full_attention"],
    )  # fmt: skip
    config._experts_implementation = "eager"
    block = experts.Qwen3_5MoeSparseMoeBlock(config)
    scale = size.hidden**-0.5
    x = size.x(ROWS)
    weights = {
        "gate.weight": make("normal", 1, size.experts, size.hidden) * 2 * scale,
        "experts.gate_up_proj": make("normal", 2, size.experts, 2 * size.inter, size.hidden)
        * scale,
        "experts.down_proj": make("normal", 3, size.experts, size.hidden, size.inter) * scale,
        "shared_expert.gate_proj.weight": make("normal", 4, size.shared_inter, size.hidden) * scale,
        "shared_expert.up_proj.weight": make("normal", 5, size.shared_inter, size.hidden) * scale,
        "shared_expert.down_proj.weight": make("normal", 6, size.hidden, size.shared_inter) * scale,
        "shared_expert_gate.weight": make("normal", 7, 1, size.hidden) * scale,
    }
    block.load_state_dict({name: value.float() for name, value in weights.items()})
    with torch.no_grad():
        logits, want_weights, want_ids = block.gate(x.float())
        want = block(x.float()[None])[0]
    f = cpu.functions
    chosen = torch.empty(ROWS, size.count)
    ids = torch.empty(ROWS, size.count, dtype=torch.int32)
    f["router.router_top_k"](
        x=x, weight=weights["gate.weight"], weights=chosen, ids=ids, count=size.count
    )()
    # Logits rounded to bf16 may order two experts otherwise; where they do not, all else is close.
    same = (ids == want_ids).all(-1)
    assert float(same.double().mean()) > 0.6
    largest = float(logits.abs().max())
    assert_within(chosen[same], want_weights[same], 2 * BF16 * largest * want_weights[same] + 1e-6)
    act = torch.empty(ROWS * size.count, size.inter, dtype=torch.bfloat16)
    f["experts.gate_up_silu"](x=x, ids=ids, weight=weights["experts.gate_up_proj"], y=act)()
    gate_up = torch.cat(
        (weights["shared_expert.gate_proj.weight"], weights["shared_expert.up_proj.weight"])
    )
    own = torch.empty(ROWS, size.shared_inter, dtype=torch.bfloat16)
    f["linear.gate_up_silu"](x=x, weight=gate_up, bias=None, y=own)()
    y = torch.empty(ROWS, size.hidden, dtype=torch.bfloat16)
    f["down_blend.shared_down_blend"](
        x=act, ids=ids, weight=weights["experts.down_proj"], weights=chosen, shared_x=own,
        shared_weight=weights["shared_expert.down_proj.weight"], gate_x=x,
        gate_weight=weights["shared_expert_gate.weight"], y=y,
    )()  # fmt: skip
    error = (y.float() - want)[same].abs()
    assert float(error.max()) < 8 * BF16 * float(want.abs().max())
    assert float(error.mean()) < 2 * BF16 * float(want.abs().mean())
