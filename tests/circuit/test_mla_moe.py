"""Mistral 4: one latent and one rotated key a token, experts beside a plain shared one."""

from __future__ import annotations

import json
import math

import pytest

from metpipe.circuit import BadCircuit, RefusedConfig, node_weight_shapes, weight_matrix
from metpipe.circuit.verify import verify

from .planned_families import TINY, changed, circuit_of, locals_of, nodes_of, understood

ATTENTION = [
    "input_norm", "q_a", "q_a_norm", "q_b", "kv_a", "kv_split", "kv_a_norm", "rope", "kv_write",
    "attend", "o", "add",
]  # fmt: skip
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down",
    "shared_gate_up", "shared_act", "shared_down", "blend", "add",
]  # fmt: skip
DENSE = ["post_norm", "gate_up", "act", "down", "add"]
YARN = {
    "rope_type": "yarn", "rope_theta": 10000.0, "factor": 128.0, "beta_fast": 32.0,
    "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def test_the_first_layers_are_dense() -> None:
    made = circuit_of(TINY["mistral4"])
    assert locals_of(made, "l0.attn") == locals_of(made, "l1.attn") == ATTENTION
    assert (locals_of(made, "l0.dense_ffn"), locals_of(made, "l0.moe_ffn")) == (DENSE, [])
    assert (locals_of(made, "l1.dense_ffn"), locals_of(made, "l1.moe_ffn")) == ([], MOE)
    every = circuit_of(changed("mistral4", first_k_dense_replace=0))
    assert locals_of(every, "l0.moe_ffn") == MOE


def test_a_token_s_cache_is_one_latent_and_one_key() -> None:
    made = circuit_of(TINY["mistral4"])
    assert {state.id: state.elements for state in made.states.values()} == {
        "l0.attn.kv": 24 + 8,
        "l1.attn.kv": 24 + 8,
    }


def test_the_attention_absorbs_a_matrix_that_is_not_its_output_by_its_input() -> None:
    made = circuit_of(TINY["mistral4"])
    node = nodes_of(made)["l0.attn.attend"]
    assert weight_matrix(made, node) == (6 * (10 + 12), 24)
    assert node_weight_shapes(made, node) == (
        ("model.layers.0.self_attn.kv_b_proj.weight", (132, 24)),
    )
    assert made.edges[node.outputs[0]].dim == 6 * 12
    assert float(node.params["scale"]) == pytest.approx(18**-0.5, rel=1e-15)


def test_a_stated_matrix_must_be_as_high_as_its_modules() -> None:
    made = circuit_of(TINY["mistral4"])
    object.__setattr__(nodes_of(made)["l0.attn.attend"], "matrix", (131, 24))
    with pytest.raises(BadCircuit, match="give 132 rows, and it needs 131"):
        verify(made)


def test_yarn_is_stated_whole() -> None:
    assert json.loads(understood(TINY["mistral4"]).params["rope"]) == YARN
    for member in ("mscale", "llama_4_scaling_beta", "factor"):
        part = {key: value for key, value in YARN.items() if key != member}
        with pytest.raises(RefusedConfig, match=f"needs '{member}'"):
            understood(changed("mistral4", rope_parameters=part))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("q_lora_rank", None, "'q_lora_rank' is missing"),
        ("n_group", 4, "among all"),
        ("norm_topk_prob", False, "sum to"),
        ("rope_interleave", False, "neighbouring"),
        ("attention_bias", True, "no bias"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        circuit_of(changed("mistral4", **{key: value}))


def test_the_defaults_of_the_class_have_119_billion_parameters() -> None:
    config = {
        "model_type": "mistral4", "num_hidden_layers": 36, "q_lora_rank": 1024,
        "n_routed_experts": 128, "rope_parameters": YARN,
    }  # fmt: skip
    made = circuit_of(config)
    shapes = [shape for node in made.nodes for _, shape in node_weight_shapes(made, node)]
    assert round(sum(map(math.prod, shapes)) / 1e9) == 119
    assert sum(state.elements for state in made.states.values()) == 36 * (256 + 64)
