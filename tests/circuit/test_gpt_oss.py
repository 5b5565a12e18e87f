"""gpt-oss: windows by turns, sinks, biases, transposed experts in MXFP4, yarn stated whole."""

from __future__ import annotations

import json

import pytest

from metpipe.circuit import RefusedConfig, node_weight_shapes, resolve_checkpoint, weight_bytes
from metpipe.circuit.vocabulary import OPS

from .families import library
from .planned_families import TINY, changed, circuit_of, locals_of, nodes_of, understood
from .test_checkpoints import section

ATTENTION = ["input_norm", "q", "k", "v", "rope", "kv_write", "attend", "o", "add"]
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down", "blend",
    "add",
]  # fmt: skip


def test_the_nodes_of_a_layer_of_each_kind() -> None:
    made = circuit_of(TINY["gpt_oss"])
    assert made.layer_kinds == ("sliding_attention", "full_attention", "sliding_attention")
    assert locals_of(made, "l0.sliding_attn") == locals_of(made, "l1.attn") == ATTENTION
    assert locals_of(made, "l1.moe_ffn") == MOE
    nodes = nodes_of(made)
    assert nodes["l0.sliding_attn.attend"].params["window"] == "7"
    assert "window" not in nodes["l1.attn.attend"].params


def test_experts_are_stored_transposed_with_biases_of_their_own() -> None:
    made = circuit_of(TINY["gpt_oss"])
    node = nodes_of(made)["l2.moe_ffn.experts_gate_up"]
    whole = "model.layers.2.mlp.experts.gate_up_proj"
    assert node_weight_shapes(made, node, {whole}) == (
        (whole, (5, 48, 40)),
        (f"{whole}_bias", (5, 40)),
    )


def test_layer_kinds_alternate_unless_they_are_listed() -> None:
    kinds = circuit_of(changed("gpt_oss", layer_types=...)).layer_kinds
    assert kinds == ("sliding_attention", "full_attention", "sliding_attention")
    listed = ["full_attention"] * 3
    assert circuit_of(changed("gpt_oss", layer_types=listed)).layer_kinds == tuple(listed)


def test_yarn_is_stated_whole() -> None:
    rope = {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "rope_theta": 150000.0,
        "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": False,
    }  # fmt: skip
    assert json.loads(understood(TINY["gpt_oss"]).params["rope"]) == rope
    for member in ("beta_fast", "beta_slow", "factor", "truncate"):
        part = {key: value for key, value in rope.items() if key != member}
        with pytest.raises(RefusedConfig, match=f"needs '{member}'"):
            understood(changed("gpt_oss", rope_parameters=part))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("attention_bias", False, "add a bias"),
        ("hidden_act", "gelu", "SwiGLU"),
        ("rope_parameters", {"rope_type": "default"}, "yarn are supported"),
        ("layer_types", ["chunked_attention"] * 3, "layer 0 is 'chunked_attention'"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("gpt_oss", **{key: value}))


@pytest.mark.parametrize(
    ("choice", "file_bytes"),
    [("gpt_oss_20b", 13_761_264_768), ("gpt_oss_120b", 65_248_815_744)],
)
def test_the_published_files_to_the_byte(choice: str, file_bytes: int) -> None:
    """All their tensors, the sum of their data: experts in MXFP4, everything else in bf16."""
    made = resolve_checkpoint(section(choice)["config"], library=library()).circuit
    total = 0
    for node in made.nodes:
        shapes = node_weight_shapes(made, node)
        if not OPS[node.op].per_expert:
            total += 2 * sum(rows * (columns or [1])[0] for _, (rows, *columns) in shapes)
            continue
        (out, k), bias = shapes[0][1], node.tensors[0].shape
        experts = made.dims["experts"]
        assert node.weight_format == "mxfp4/g32"
        total += experts * weight_bytes("mxfp4/g32", out, k) + 2 * bias[0] * bias[1]
    assert total == file_bytes
