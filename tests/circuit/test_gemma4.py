"""Gemma 4: two sizes of heads, norms on both sides, experts beside the dense feed-forward."""

from __future__ import annotations

import json
import math

import pytest

from metpipe.circuit import RefusedConfig, is_outside, node_weight_shapes
from metpipe.circuit.vocabulary import NORMS

from .planned_families import TENSORS, TINY, changed, circuit_of, locals_of, nodes_of, understood
from .test_checkpoints import circuit

SLIDING = [
    "input_norm", "q", "k", "v", "q_norm", "k_norm", "v_norm", "rope", "kv_write", "attend", "o",
    "post_norm", "add",
]  # fmt: skip
FULL = [name for name in SLIDING if name != "v"]
DENSE = ["pre_norm", "gate_up", "act", "down", "post_norm", "add", "scale"]
MOE = [
    "pre_norm", "gate_up", "act", "down", "dense_norm", "router_norm", "router", "top_k",
    "experts_norm", "experts_gate_up", "experts_act", "experts_down", "blend", "routed_norm",
    "both", "post_norm", "add", "scale",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ffn", "nodes"),
    [("gemma4_text", "dense_ffn", DENSE), ("gemma4", "moe_ffn", MOE)],
)
def test_the_nodes_of_a_layer_of_each_kind(name: str, ffn: str, nodes: list[str]) -> None:
    made = circuit_of(TINY[name])
    assert made.layer_kinds == ("sliding_attention", "sliding_attention", "full_attention")
    assert locals_of(made, "l1.sliding_attn") == SLIDING
    assert locals_of(made, "l2.attn") == FULL
    assert locals_of(made, f"l1.{ffn}") == locals_of(made, f"l2.{ffn}") == nodes
    assert locals_of(made, "embed") == ["embed", "scale"]
    assert locals_of(made, "head") == ["final_norm", "lm_head", "softcap", "argmax"]


def test_full_layers_take_the_value_from_the_key_s_projection_before_its_norm() -> None:
    made = circuit_of(TINY["gemma4_text"])
    nodes = nodes_of(made)
    assert nodes["l2.attn.v_norm"].inputs == nodes["l2.attn.k"].outputs
    assert nodes["l2.attn.kv_write"].inputs[1] == nodes["l2.attn.v_norm"].outputs[0]
    assert made.states["l2.attn.k"].shape == (1, 32)
    assert made.states["l0.sliding_attn.v"].shape == (2, 16)
    assert nodes["l0.sliding_attn.attend"].params["window"] == "7"


def test_norms_are_plain_but_those_without_a_weight() -> None:
    made = circuit_of(TINY["gemma4"])
    forms = {node.local: node.params["weight_form"] for node in made.nodes if node.op in NORMS}
    weightless = {name for name, form in forms.items() if form == "none"}
    assert weightless == {"v_norm", "router_norm"}
    assert set(forms.values()) == {"plain", "none"}
    router = nodes_of(made)["l0.moe_ffn.router_norm"]
    assert node_weight_shapes(made, router)[0][0].endswith("layers.0.router.scale")


def test_only_the_vision_tower_is_outside() -> None:
    made = circuit_of(TINY["gemma4"])
    outside = {name for name in TENSORS["gemma4"] if is_outside(made, name)}
    assert outside == {name for name in TENSORS["gemma4"] if "vision" in name}
    assert outside


def test_logits_that_are_not_capped_have_no_node_for_it() -> None:
    made = circuit_of(changed("gemma4_text", final_logit_softcapping=None))
    assert "softcap" not in locals_of(made, "head")
    assert nodes_of(made)["head.argmax"].inputs == ("head.raw",)


def test_the_sizes_of_full_layers_are_stated_once_or_per_layer() -> None:
    stated = {"global_head_dim": 32, "num_global_key_value_heads": 1}
    once = understood(changed("gemma4_text", per_layer_config=..., **stated))
    assert once.dims == understood(TINY["gemma4_text"]).dims
    alone = understood(changed("gemma4_text", per_layer_config=...))
    assert (alone.dims["g_kv_heads"], alone.dims["g_head_dim"]) == (2, 512)


@pytest.mark.parametrize(
    ("per_layer", "why"),
    [
        ({"1": {"head_dim": 32}}, "the layers of kind full_attention and no other: layer 1"),
        ({}, "and no other: layer 2"),
        ({"2": {"num_key_value_heads": 1}}, "its layers do not state head_dim"),
        ({"2": {"head_dim": 32, "window": 3}}, r"per_layer_config\.2\.window' is not classified"),
        ({"2": 32}, "an object of layer numbers"),
        ({"2": {"head_dim": 0}}, "global_head_dim must be a positive integer"),
    ],
)
def test_sizes_per_layer_are_checked(per_layer: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        understood(changed("gemma4_text", per_layer_config=per_layer))


def test_sizes_that_differ_or_are_stated_twice_are_refused() -> None:
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    two = {"1": {"head_dim": 16}, "2": {"head_dim": 32}}
    with pytest.raises(RefusedConfig, match="the layers differ in head_dim"):
        understood(changed("gemma4_text", layer_types=kinds, per_layer_config=two))
    same = understood(changed("gemma4_text", global_head_dim=32))
    assert same.dims == understood(TINY["gemma4_text"]).dims
    with pytest.raises(RefusedConfig, match="global_head_dim = 48 contradicts per_layer_config"):
        understood(changed("gemma4_text", global_head_dim=48))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("layer_types", ["full_attention", "full_attention", "sliding_attention"], "last layer"),
        ("attention_k_eq_v", False, "one projection"),
        ("attention_k_eq_v", ..., "one projection"),
        ("hidden_size_per_layer_input", 8, "inputs of their own"),
        ("hidden_size_per_layer_input", ..., "inputs of their own"),
        ("num_kv_shared_layers", 1, "cache of its own"),
        ("use_bidirectional_attention", "all", "looks back only"),
        ("hidden_activation", "silu", "gelu"),
        ("rope_parameters", {"full_attention": {"rope_type": "default"}}, "proportional are"),
        ("rope_parameters", {"sliding_attention": {"rope_type": "yarn"}}, "default are"),
        ("rope_parameters", {"rope_theta": 1e4}, r"'rope_parameters\.rope_theta' is not"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("gemma4_text", **{key: value}))


def test_positions_of_both_kinds_of_layers() -> None:
    params = understood(TINY["gemma4"]).params
    assert json.loads(params["rope"]) == {"rope_type": "default", "rope_theta": 1e4}
    assert json.loads(params["g_rope"]) == {
        "rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "layers", "billions", "sliding", "full"),
    [
        ("gemma_4_26b_a4b", (25, 5), 25.2, 2 * 8 * 256, 2 * 2 * 512),
        ("gemma_4_31b_it_nvfp4", (50, 10), 30.7, 2 * 16 * 256, 2 * 4 * 512),
    ],
)
def test_published_sizes(
    choice: str, layers: tuple[int, int], billions: float, sliding: int, full: int
) -> None:
    """Parameters of the text model, and elements a token of the two kinds of caches."""
    made = circuit(choice)
    kinds = ("sliding_attention", "full_attention")
    assert tuple(map(made.layer_kinds.count, kinds)) == layers
    seen: dict[str, int] = {}
    for node in made.nodes:
        seen |= {name: math.prod(shape) for name, shape in node_weight_shapes(made, node)}
    assert round(sum(seen.values()) / 1e9, 1) == billions
    cache = {
        kind: sum(state.elements for state in made.states.values() if state.local.startswith(kind))
        for kind in ("sliding_attn.", "attn.")
    }
    assert cache == {"sliding_attn.": layers[0] * sliding, "attn.": layers[1] * full}
