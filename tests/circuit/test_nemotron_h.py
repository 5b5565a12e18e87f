"""Nemotron-H with experts: mixers, latent experts, draft head, keys, published sizes."""

from __future__ import annotations

import pytest

from metpipe.circuit import RefusedConfig, node_weight_shapes
from metpipe.circuit.vocabulary import NORMS

from .planned_families import TINY, changed, circuit_of, locals_of, nodes_of
from .test_checkpoints import circuit

MAMBA = ["norm", "in_proj", "split", "conv", "ssm", "out_norm", "out_proj", "add"]
ATTENTION = ["norm", "q", "k", "v", "kv_write", "attend", "o", "add"]
MOE = [
    "norm", "router", "top_k", "experts_up", "experts_act", "experts_down", "blend", "shared_up",
    "shared_act", "shared_down", "shared_add", "add",
]  # fmt: skip
LATENT = [*MOE[:3], "latent_in", *MOE[3:7], "latent_out", *MOE[7:]]
NANO, SUPER = "nemotron_3_nano_30b_a3b_nvfp4", "nemotron_3_super_120b_a12b_nvfp4"


@pytest.mark.parametrize(("name", "moe"), [("nemotron_h", MOE), ("nemotron_h_latent", LATENT)])
def test_one_mixer_per_layer(name: str, moe: list[str]) -> None:
    made = circuit_of(TINY[name])
    assert made.layer_kinds == ("mamba", "moe", "full_attention", "moe")
    assert [locals_of(made, p) for p in ("l0.mamba", "l1.moe", "l2.attn")] == [
        MAMBA, moe, ATTENTION,
    ]  # fmt: skip


def test_routed_experts_run_in_the_latent_width_and_the_shared_one_does_not() -> None:
    made = circuit_of(TINY["nemotron_h_latent"])
    nodes = nodes_of(made)
    assert made.edges[nodes["l1.moe.experts_up"].inputs[0]].dim == 24
    assert made.edges[nodes["l1.moe.experts_down"].outputs[0]].dim == 24
    assert made.edges[nodes["l1.moe.shared_up"].inputs[0]].dim == 48
    assert nodes["l1.moe.router"].inputs == nodes["l1.moe.shared_up"].inputs


def test_the_draft_head_is_attention_and_experts_of_two_modules() -> None:
    made = circuit_of(TINY["nemotron_h_latent"])
    names = {
        tensor.removesuffix(".weight"): shape
        for node in made.nodes
        if node.section == "draft"
        for tensor, shape in node_weight_shapes(made, node)
        if tensor.startswith("mtp.") and ".experts." not in tensor
    }
    assert names == {
        "mtp.layers.0.enorm": (48,), "mtp.layers.0.hnorm": (48,), "mtp.layers.0.eh_proj": (48, 96),
        "mtp.layers.0.norm": (48,), "mtp.layers.0.mixer.q_proj": (96, 48),
        "mtp.layers.0.mixer.k_proj": (32, 48), "mtp.layers.0.mixer.v_proj": (32, 48),
        "mtp.layers.0.mixer.o_proj": (48, 96), "mtp.layers.1.norm": (48,),
        "mtp.layers.1.mixer.gate": (5, 48), "mtp.layers.1.mixer.gate.e_score_correction_bias": (5,),
        "mtp.layers.1.mixer.fc1_latent_proj": (24, 48),
        "mtp.layers.1.mixer.fc2_latent_proj": (48, 24),
        "mtp.layers.1.mixer.shared_experts.up_proj": (28, 48),
        "mtp.layers.1.mixer.shared_experts.down_proj": (48, 28),
        "mtp.layers.1.final_layernorm": (48,),
    }  # fmt: skip
    assert nodes_of(made)["draft.mtp_in.hidden_norm"].inputs == ("l3.moe.y",)


def test_weights_are_as_stored_and_the_router_is_never_quantised() -> None:
    made = circuit_of(
        changed("nemotron_h", quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"})
    )
    assert {node.params["weight_form"] for node in made.nodes if node.op in NORMS} == {"plain"}
    formats = {node.op: node.weight_format for node in made.nodes}
    assert (formats["router"], formats["expert_down"]) == ("bf16", "fp8/tensor")


@pytest.mark.parametrize(
    ("key", "entries"),
    [
        ("layers_block_type", ["mamba", "moe", "attention", "moe"]),
        ("layer_types", ["linear_attention", "moe", "full_attention", "moe"]),
        ("hybrid_override_pattern", "ME*E"),
    ],
)
def test_layer_kinds_by_name_or_by_letter(key: str, entries: object) -> None:
    config = changed("nemotron_h", **{"layers_block_type": ..., key: entries})
    kinds = ("mamba", "moe", "full_attention", "moe")
    assert circuit_of(config).layer_kinds == kinds
    assert circuit_of({**config, "num_hidden_layers": 4}).layer_kinds == kinds
    with pytest.raises(RefusedConfig, match=f"{key} must list one kind for each of the 5 layers"):
        circuit_of({**config, "num_hidden_layers": 5})


def test_layer_kinds_are_needed_once() -> None:
    with pytest.raises(RefusedConfig, match="'num_hidden_layers' is missing"):
        circuit_of(changed("nemotron_h", layers_block_type=...))
    with pytest.raises(RefusedConfig, match="both name layer kinds"):
        circuit_of(changed("nemotron_h", hybrid_override_pattern="ME*E"))
    with pytest.raises(RefusedConfig, match=r"layer 1 is '-'.*dense feed-forward \(-\)"):
        circuit_of(changed("nemotron_h", layers_block_type=..., hybrid_override_pattern="M-*E"))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("mlp_hidden_act", "silu", r"relu\(up\)"),
        ("use_conv_bias", False, "adds a bias"),
        ("time_step_limit", [0.0, 0.1], "not clamped"),
        ("sliding_window", 64, "window"),
        ("n_group", 2, "among all"),
        ("norm_topk_prob", False, "sum to"),
        ("num_nextn_predict_layers", 2, "only 0, 1"),
        ("mtp_layers_block_type", ["moe"], "attention and experts"),
        ("mamba_ssm_cache_dtype", "bfloat16", "f32"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=rf"{key} = .*{why}"):
        circuit_of(changed("nemotron_h", **{key: value}))


@pytest.mark.parametrize(
    ("choice", "kinds", "attention", "h", "conv", "slot_mib", "per_token", "draft_block"),
    [
        (NANO, (23, 23, 6), (5, 12, 19, 26, 33, 42), 2_097_152, 98_304, 48.15625, 3_072, 0),
        (
            SUPER, (40, 40, 8), (7, 16, 25, 36, 47, 58, 69, 78), 4_194_304, 163_840, 166.25,
            4_096, 16_384,
        ),
    ],
)  # fmt: skip
def test_published_states(
    choice: str, kinds: tuple[int, ...], attention: tuple[int, ...], h: int, conv: int,
    slot_mib: float, per_token: int, draft_block: int,
) -> None:  # fmt: skip
    made = circuit(choice)
    assert tuple(map(made.layer_kinds.count, ("mamba", "moe", "full_attention"))) == kinds
    found = [i for i, kind in enumerate(made.layer_kinds) if kind == "full_attention"]
    assert tuple(found) == attention
    states = made.states.values()
    assert {4 * state.elements for state in states if state.local == "mamba.h"} == {h}
    assert {4 * state.elements for state in states if state.local == "mamba.conv"} == {conv}
    assert sum(4 * s.elements for s in states if s.kind == "recurrent") == slot_mib * 2**20
    paged = [state for state in states if state.kind == "paged_kv"]
    assert sum(state.elements for state in paged if state.section == "main") == per_token
    assert 16 * 2 * sum(s.elements for s in paged if s.section == "draft") == draft_block


def test_published_formats_of_nano() -> None:
    """17 of 23 Mamba layers are in NVFP4: not those before an attention layer."""
    nodes = nodes_of(circuit(NANO)).values()
    mamba = {n.layer for n in nodes if (n.local, n.weight_format) == ("in_proj", "nvfp4/g16")}
    assert len(mamba) == 17
    assert mamba.isdisjoint({4, 11, 18, 25, 32, 41})
    formats = {node.local: node.weight_format for node in nodes}
    assert [formats[name] for name in ("q", "lm_head", "router", "experts_up", "shared_down")] == [
        "bf16", "bf16", "bf16", "nvfp4/g16", "nvfp4/g16",
    ]  # fmt: skip
