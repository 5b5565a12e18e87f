"""DeepSeek V4: residual streams, one key-value row a token, pooled rows, experts by id or score."""

from __future__ import annotations

import json
import math

import pytest

from metpipe.circuit import RefusedConfig, is_outside, node_weight_shapes, weight_matrix
from metpipe.circuit.vocabulary import NORMS

from .planned_families import TINY, changed, circuit_of, locals_of, nodes_of, understood
from .test_checkpoints import circuit

PRE, POST = ["mix_norm", "mix", "pre"], ["post"]
QUERY = ["input_norm", "q_a", "q_a_norm", "q_b", "q_norm", "kv", "kv_norm", "rope", "kv_write"]
POOL = ["c_kv", "c_gate", "c_pool"]
INDEX = ["i_kv", "i_gate", "i_pool", "i_q", "i_rope", "i_weights", "select"]
OUT = ["attend", "unrope", "o_a", "o"]
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down",
    "shared_gate_up", "shared_act", "shared_down", "blend",
]  # fmt: skip
FLASH = "deepseek_v4_flash"


def test_the_nodes_of_a_layer_of_each_kind() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    assert made.layer_kinds == (
        "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
        "compressed_sparse_attention",
    )  # fmt: skip
    assert locals_of(made, "l0.swa_attn") == [*PRE, *QUERY, *OUT, *POST]
    assert locals_of(made, "l1.csa_attn") == [*PRE, *QUERY, *POOL, *INDEX, *OUT, *POST]
    assert locals_of(made, "l2.hca_attn") == [*PRE, *QUERY, *POOL, *OUT, *POST]
    for block in ("l0.hash_ffn", "l1.hash_ffn", "l2.moe_ffn", "l3.moe_ffn"):
        assert locals_of(made, block) == [*PRE, *MOE, *POST]
    assert locals_of(made, "embed") == ["embed", "expand"]
    assert locals_of(made, "head") == [
        "mix_norm", "mix", "contract", "final_norm", "lm_head", "argmax",
    ]  # fmt: skip


def test_the_streams_pass_through_every_layer() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    nodes = nodes_of(made)
    assert made.edges["embed.x"].dim == 3 * 48
    assert nodes["l1.csa_attn.pre"].inputs == ("l0.hash_ffn.y", "l1.csa_attn.mix")
    assert nodes["l1.csa_attn.post"].inputs[-1] == "l0.hash_ffn.y"
    assert nodes["head.contract"].inputs[0] == "l3.moe_ffn.y"
    assert weight_matrix(made, nodes["l0.swa_attn.mix"]) == (3 * (3 + 2), 3 * 48)


def test_groups_of_heads_are_multiplied_on_their_own() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    node = nodes_of(made)["l0.swa_attn.o_a"]
    assert made.edges[node.inputs[0]].dim == 3 * 128
    assert weight_matrix(made, node) == (3 * 10, 128)


def test_the_first_layers_take_experts_from_a_table() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    nodes = nodes_of(made)
    hashed, scored = nodes["l1.hash_ffn.top_k"], nodes["l2.moe_ffn.top_k"]
    assert hashed.params["selection"] == "token_hash"
    assert node_weight_shapes(made, hashed) == (("layers.1.ffn.gate.tid2eid", (56, 2)),)
    assert node_weight_shapes(made, scored) == (("layers.2.ffn.gate.bias", (5,)),)
    none = circuit_of(changed("deepseek_v4", mlp_layer_types=..., num_hash_layers=0))
    assert "l0.moe_ffn.top_k" in nodes_of(none)
    absent = understood(changed("deepseek_v4", mlp_layer_types=...))
    assert absent.dims["hash_layers"] == 3


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        (["hash_moe", "moe", "hash_moe", "moe"], "must be hash_moe for the first layers"),
        (["dense", "moe", "moe", "moe"], "must be hash_moe for the first layers"),
        ("hash_moe", "must list an entry for each layer"),
    ],
)
def test_kinds_of_feed_forward_that_are_no_prefix_are_refused(listed: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=f"mlp_layer_types {why}"):
        understood(changed("deepseek_v4", mlp_layer_types=listed))
    with pytest.raises(RefusedConfig, match="num_hash_layers = 3 contradicts mlp_layer_types"):
        understood(changed("deepseek_v4", num_hash_layers=3))


def test_states() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    sizes = {s.local: (s.kind, s.format, s.elements) for s in made.states.values()}
    ring = ("recurrent", "{kv_cache_dtype}", 7 * 128)
    assert sizes == {
        "swa_attn.kv": ring, "csa_attn.kv": ring, "hca_attn.kv": ring,
        "csa_attn.pool": ("paged_kv", "{kv_cache_dtype}", 128 // 4),
        "csa_attn.tail": ("recurrent", "f32", 8 * 4 * 128),
        "csa_attn.index_pool": ("paged_kv", "bf16", 16 // 4),
        "csa_attn.index_tail": ("recurrent", "f32", 8 * 4 * 16),
        "hca_attn.pool": ("paged_kv", "{kv_cache_dtype}", 128 // 128),
        "hca_attn.tail": ("recurrent", "f32", 128 * 2 * 128),
    }  # fmt: skip


def test_layer_kinds_by_name_or_by_ratio() -> None:
    ratios = changed("deepseek_v4", layer_types=..., compress_ratios=[0, 4, 128, 4, 0])
    kinds = circuit_of(TINY["deepseek_v4"]).layer_kinds
    assert circuit_of(ratios).layer_kinds == kinds  # the last entry is the draft head's
    with pytest.raises(RefusedConfig, match=r"layer 1 is 8.*4 tokens or for 128"):
        circuit_of({**ratios, "compress_ratios": [0, 8, 128, 4, 0]})
    with pytest.raises(RefusedConfig, match="layer_types or compress_ratios is missing"):
        circuit_of(changed("deepseek_v4", layer_types=...))


def test_positions_of_the_window_and_of_pooled_rows() -> None:
    params = circuit(FLASH).params
    assert json.loads(params["rope"]) == {
        "rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125,
    }  # fmt: skip
    assert json.loads(params["c_rope"]) == {
        "rope_type": "yarn", "rope_theta": 160000, "factor": 16, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 65536,
    }  # fmt: skip
    nodes = nodes_of(circuit(FLASH))
    used = {name: nodes[name].params["rope"] for name in ("l0.swa_attn.rope", "l2.csa_attn.rope")}
    assert used == {"l0.swa_attn.rope": params["rope"], "l2.csa_attn.rope": params["c_rope"]}
    assert nodes["l2.csa_attn.unrope"].params["inverse"] == "true"


def test_norms_are_plain_or_have_no_weight() -> None:
    made = circuit_of(TINY["deepseek_v4"])
    forms = {node.local: node.params["weight_form"] for node in made.nodes if node.op in NORMS}
    assert {name for name, form in forms.items() if form == "none"} == {"mix_norm", "q_norm"}
    assert set(forms.values()) == {"plain", "none"}


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("scoring_func", "sigmoid", "sqrt"),
        ("num_key_value_heads", 2, "share one"),
        ("n_shared_experts", 2, "one shared expert"),
        ("compress_rates", {"compressed_sparse_attention": 8}, "4 tokens"),
        ("compress_rates", {"windowed": 8}, "not classified"),
        ("index_head_dim", 18, "multiple of 4"),
        ("topk_method", "greedy", "corrected scores"),
        ("rope_parameters", {"compress": {"rope_type": "linear"}}, "yarn are supported"),
        ("rope_scaling", {"type": "yarn"}, "contradicts"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("deepseek_v4", **{key: value}))


def test_published_sizes_and_formats() -> None:
    """284 billion parameters; a token has 21 x (128 + 32) and 20 x 4 elements in bf16."""
    made = circuit(FLASH)
    assert made.layer_kinds.count("compressed_sparse_attention") == 21
    shapes = [shape for node in made.nodes for _, shape in node_weight_shapes(made, node)]
    assert round(sum(map(math.prod, shapes)) / 1e9) == 284
    paged = [state for state in made.states.values() if state.kind == "paged_kv"]
    assert 2 * sum(state.elements for state in paged) == 6_880
    formats = {node.local: node.weight_format for node in made.nodes if node.weight_format}
    assert {name: formats[name] for name in ("q_b", "experts_down", "shared_down", "i_q")} == {
        "q_b": "fp8/block128x128", "experts_down": "mxfp4/g32", "shared_down": "fp8/block128x128",
        "i_q": "fp8/block128x128",
    }  # fmt: skip
    left = ("embed", "lm_head", "router", "mix", "c_kv", "c_gate", "i_kv", "i_weights")
    assert {formats[name] for name in left} == {"bf16"}
    assert is_outside(made, "mtp.0.norm.weight")


def test_the_experts_of_an_export_over_that_base() -> None:
    formats = {n.local: n.weight_format for n in circuit("deepseek_v4_flash_nvfp4").nodes}
    assert (formats["experts_down"], formats["q_b"]) == ("nvfp4/g16", "fp8/block128x128")
