"""GLM 5.3 Flash: residual streams, decays per channel, attention over chosen runs, a draft head."""

from __future__ import annotations

import math

import pytest

from metpipe.circuit import RefusedConfig, is_outside, node_weight_shapes, weight_matrix

from .planned_families import TENSORS, TINY, changed, circuit_of, locals_of, nodes_of, understood
from .test_checkpoints import circuit

PRE, POST = ["mix_norm", "mix", "pre"], ["post"]
KDA = [
    "input_norm", "q", "k", "v", "join", "conv", "l2", "b", "f_a", "f_b", "gates", "recur", "g_a",
    "g_b", "out_norm", "o",
]  # fmt: skip
DSA = [
    "input_norm", "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_write", "i_q", "i_k",
    "i_k_norm", "i_gate", "i_pool", "i_weights", "select", "attend", "o",
]  # fmt: skip
DENSE = ["post_norm", "gate_up", "act", "down"]
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down",
    "shared_gate_up", "shared_act", "shared_down", "blend",
]  # fmt: skip
FLASH = "glm_5_3_flash"


def drafting() -> dict[str, object]:
    return changed("glm5_next", num_nextn_predict_layers=1)


def test_the_nodes_of_a_layer_of_each_kind() -> None:
    made = circuit_of(TINY["glm5_next"])
    assert made.layer_kinds == ("linear_attention",) * 3 + ("deepseek_sparse_attention",)
    for layer in range(3):
        assert locals_of(made, f"l{layer}.kda") == [*PRE, *KDA, *POST]
    assert locals_of(made, "l3.dsa") == [*PRE, *DSA, *POST]
    assert locals_of(made, "l1.dense_ffn") == [*PRE, *DENSE, *POST]
    assert locals_of(made, "l2.moe_ffn") == locals_of(made, "l3.moe_ffn") == [*PRE, *MOE, *POST]
    assert locals_of(made, "head") == ["contract", "final_norm", "lm_head", "argmax"]


def test_states() -> None:
    made = circuit_of(drafting())
    sizes = {s.local: (s.kind, s.format, s.elements, s.verify) for s in made.states.values()}
    latent = ("paged_kv", "{kv_cache_dtype}", 24, None)
    pool, tail = ("paged_kv", "bf16", 16 // 4, None), ("recurrent", "bf16", 4 * 32, "conv_steps")
    assert sizes == {
        "kda.h": ("recurrent", "{ssm_h_storage}", 3 * 16 * 16, "h_steps"),
        "kda.conv": ("recurrent", "f32", 3 * 48 * 4, "conv_steps"),
        "dsa.kv": latent, "dsa.index_pool": pool, "dsa.index_tail": tail,
        "mtp_dsa.kv": latent, "mtp_dsa.index_pool": pool, "mtp_dsa.index_tail": tail,
    }  # fmt: skip


def test_decays_are_per_channel_and_strengths_per_head() -> None:
    made = circuit_of(TINY["glm5_next"])
    node = nodes_of(made)["l0.kda.gates"]
    assert [made.edges[edge].dim for edge in node.outputs] == [48, 3]
    assert node.params["lower"] == "-5.0"


def test_the_index_chooses_whole_runs() -> None:
    made = circuit_of(TINY["glm5_next"])
    nodes = nodes_of(made)
    assert made.edges["l3.dsa.chosen"].dim == 8 // 4
    assert nodes["l3.dsa.attend"].inputs == ("l3.dsa.q", "l3.dsa.chosen")
    assert weight_matrix(made, nodes["l3.dsa.attend"]) == (6 * (10 + 12), 24)
    gate = node_weight_shapes(made, nodes["l3.dsa.i_gate"])
    assert gate[0][0].endswith(".indexer.index_kpool_compress_gate")
    norm = dict(node_weight_shapes(made, nodes["l3.dsa.i_k_norm"]))
    assert {name.rpartition(".")[2]: shape for name, shape in norm.items()} == {
        "weight": (16,), "bias": (16,),
    }  # fmt: skip


def test_the_draft_head_is_the_layer_behind_the_last_and_reads_the_normed_row() -> None:
    made = circuit_of(drafting())
    nodes = nodes_of(made)
    assert nodes["draft.mtp_in.hidden_norm"].inputs == ("head.xn",)
    assert locals_of(made, "draft.mtp_dsa") == [*DSA, "add"]
    assert locals_of(made, "draft.mtp_moe") == [*MOE, "add"]
    module = "model.language_model.layers.4"
    assert nodes["draft.mtp_in.fc"].binding == (f"{module}.eh_proj",)
    assert nodes["draft.mtp_out.final_norm"].binding == (f"{module}.shared_head.norm",)
    assert nodes["draft.mtp_out.lm_head"].binding == ("lm_head",)
    assert {node.section for node in circuit_of(TINY["glm5_next"]).nodes} == {"main"}


def test_only_the_vision_tower_is_outside() -> None:
    made = circuit_of(TINY["glm5_next"])
    outside = {name for name in TENSORS["glm5_next"] if is_outside(made, name)}
    assert outside == {name for name in TENSORS["glm5_next"] if ".visual." in name}


def test_sizes_of_the_linear_layers_in_either_spelling() -> None:
    sizes = {"num_heads": 3, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0}
    plain = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "linear_lower_bound")
    other = changed("glm5_next", linear_attn_config=sizes, **dict.fromkeys(plain, ...))
    same = understood(TINY["glm5_next"])
    assert (understood(other).dims, understood(other).params) == (same.dims, same.params)
    both = changed("glm5_next", linear_attn_config=sizes)
    assert understood(both).dims == same.dims
    with pytest.raises(RefusedConfig, match="linear_head_dim = 16 contradicts linear_attn_config"):
        understood(changed("glm5_next", linear_attn_config={**sizes, "head_dim": 32}))
    with pytest.raises(RefusedConfig, match=r"'linear_attn_config\.window' is not classified"):
        understood(changed("glm5_next", linear_attn_config={**sizes, "window": 1}))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("indexer_types", ["full", "shared", "full", "full"], 'a list of "full" is supported'),
        ("indexer_types", "FSFF", 'a list of "full" is supported'),
        ("linear_lower_bound", None, "must not be null"),
        ("qk_rope_head_dim", 64, "no positions"),
        ("mhc", False, "several residual streams"),
        ("index_topk", 10, "multiple of kpool = 4"),
        ("index_kpool_always_select_tail", False, "open run"),
        ("n_group", 2, "among all"),
        ("first_k_dense_replace", 3, "contradicts mlp_layer_types, which says 2"),
        ("num_nextn_predict_layers", 2, "only 0, 1"),
        ("layer_types", ["mamba"] * 4, "layer 0 is 'mamba'"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("glm5_next", **{key: value}))


def test_the_published_parameters_to_the_last_one() -> None:
    """321,323,031,390 with the draft layer, of which 563,627,008 are the vision tower's."""
    made = circuit(FLASH)
    seen: dict[str, int] = {}
    for node in made.nodes:
        seen |= {name: math.prod(shape) for name, shape in node_weight_shapes(made, node)}
    assert sum(seen.values()) == 321_323_031_390 - 563_627_008
    assert made.layer_kinds.count("deepseek_sparse_attention") == 11
    paged = [s for s in made.states.values() if s.kind == "paged_kv" and s.section == "main"]
    assert sum(state.elements for state in paged) == 11 * (512 + 128 // 4)
