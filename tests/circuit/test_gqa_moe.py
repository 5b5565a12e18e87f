"""MiniMax M2: row-wide norms, partial rotation, experts by corrected sigmoid scores."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import (
    Kernel,
    RefusedConfig,
    Select,
    Situation,
    Uncovered,
    fuse,
    node_weight_shapes,
)

from .planned_families import TINY, changed, circuit_of, locals_of, nodes_of, understood
from .toy import every_kernel, rule, rule_set

ATTENTION = [
    "input_norm", "q", "k", "v", "q_norm", "k_norm", "rope", "kv_write", "attend", "o", "add",
]  # fmt: skip
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down", "blend",
    "add",
]  # fmt: skip


def test_the_nodes_of_a_layer() -> None:
    made = circuit_of(TINY["minimax_m2"])
    assert made.layer_kinds == ("full_attention",) * 2
    assert locals_of(made, "l1.attn") == ATTENTION
    assert locals_of(made, "l1.moe_ffn") == MOE


def test_a_norm_covers_all_heads_of_a_token() -> None:
    made = circuit_of(TINY["minimax_m2"])
    nodes = nodes_of(made)
    assert node_weight_shapes(made, nodes["l0.attn.q_norm"])[0][1] == (6 * 16,)
    assert node_weight_shapes(made, nodes["l0.attn.k_norm"])[0][1] == (2 * 16,)
    assert nodes["l0.attn.q_norm"].params["scope"] == "layer"
    assert nodes["l0.moe_ffn.top_k"].params["scoring"] == "sigmoid_bias"


@pytest.mark.parametrize(
    ("rope", "rotary_dim", "expected"),
    [
        ({"partial_rotary_factor": 0.5}, ..., 8),
        ({}, 8, 8),
        ({}, ..., 16),
        ({"partial_rotary_factor": 0.5}, 8, 8),
    ],
)
def test_the_rotated_channels_are_a_number_or_a_share(
    rope: dict[str, float], rotary_dim: object, expected: int
) -> None:
    config = changed("minimax_m2", rope_parameters=rope, rotary_dim=rotary_dim)
    assert understood(config).dims["rotary_dim"] == expected


def test_a_number_and_a_share_that_disagree_are_refused() -> None:
    with pytest.raises(RefusedConfig, match=r"rotary_dim = 4 contradicts .* = 0\.5 of 16"):
        understood(changed("minimax_m2", rotary_dim=4))


@pytest.mark.parametrize("told", [False, True])
def test_a_node_that_is_data_only_is_taken_by_no_rule_that_is_not_told(told: bool) -> None:
    made = circuit_of(TINY["minimax_m2"])
    others = [rule(op, [op]) for op in {node.op for node in made.nodes} - {"qk_norm"}]
    args = {"x": "0.in.0", "w": "0.weight", "y": "0.out.0"}
    if told:
        args["why"] = "0.param.unlowered"
    norm = replace(rule("norm", ["qk_norm"]), kernels=(Kernel("k", "norm", args),))
    rules = rule_set(norm, *others)
    situation = Situation("decode", 1, every_kernel(rules), select=Select.all())
    if told:
        assert fuse(made, rules, situation).groups
        return
    with pytest.raises(Uncovered, match="data only: no kernel normalises q or k as a row"):
        fuse(made, rules, situation)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("attn_type_list", [1, 0], "layer 1 is 0"),
        ("scoring_func", "softmax", "sigmoid"),
        ("qk_norm_type", "per_head", "whole rows"),
        ("shared_intermediate_size", 64, "no shared expert"),
        ("layernorm_mlp_beta", 0.5, "not scaled"),
        ("sliding_window", 128, "window"),
        ("rope_parameters", {"rope_type": "yarn"}, "default are supported"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("minimax_m2", **{key: value}))


def test_absent_keys_take_the_defaults_of_the_class() -> None:
    config = {"model_type": "minimax_m2", "num_hidden_layers": 62, "num_local_experts": 256}
    found = understood(config)
    sizes = {
        "hidden": 3072, "vocab": 200064, "q_heads": 48, "kv_heads": 8, "head_dim": 128,
        "rotary_dim": 128, "experts": 256, "top_k": 8, "moe_inter": 1536, "tie": 0, "layers": 62,
    }  # fmt: skip
    assert found.dims == sizes
