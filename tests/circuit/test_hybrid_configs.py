"""config.json of the hybrids: nested or flat, class defaults, every other key refused by name."""

from __future__ import annotations

import json

import pytest

from metpipe.circuit import BadCircuit, RefusedConfig
from metpipe.circuit.config_map_toml import parse_config_map

from .hybrids import TINY, changed, circuit_of, published, understood

FLAT = ("qwen3_5_text", "qwen3_5_moe_text")


@pytest.mark.parametrize("name", TINY)
def test_configs_as_transformers_saves_them(name: str) -> None:
    found = understood(TINY[name])
    assert found.arch == ("qwen3_6_moe" if "moe" in name else "qwen3_5")
    assert found.model_type == TINY[name]["model_type"]


@pytest.mark.parametrize(
    ("name", "layers", "recurrent"), [("27B", 64, 48), ("35B-A3B", 40, 30), ("122B-A10B", 48, 36)]
)
def test_published_shapes(name: str, layers: int, recurrent: int) -> None:
    found = understood(published(name))
    kinds = found.circuit.layer_kinds
    assert (len(kinds), kinds.count("linear_attention")) == (layers, recurrent)
    assert kinds[:4] == ("linear_attention",) * 3 + ("full_attention",)
    assert (found.dims["rotary_dim"], found.dims["mtp"]) == (64, 1)
    rope = json.loads(found.params["rope"])
    assert (rope["rope_theta"], rope["mrope_section"]) == (1e7, [11, 11, 10])


@pytest.mark.parametrize("name", FLAT)
def test_absent_keys_take_the_defaults_of_the_class(name: str) -> None:
    sizes = {
        "head_dim": 256, "linear_num_key_heads": 16, "linear_key_head_dim": 128,
        "linear_num_value_heads": 32, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
    }  # fmt: skip
    moe = {
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }  # fmt: skip
    stated = {**sizes, **(moe if "moe" in name else {})}
    absent = [*stated, "layer_types", "rope_parameters", "mtp_num_hidden_layers", "rms_norm_eps"]
    enough = {"num_experts": 8} if "moe" in name else {}
    found = understood(changed(name, **enough, **dict.fromkeys(absent, ...)))
    same = understood(changed(name, **enough, **stated, mtp_num_hidden_layers=0))
    assert found.dims == same.dims
    assert found.circuit.layer_kinds == ("linear_attention",) * 3 + ("full_attention",)
    assert found.dims["rotary_dim"] == 64
    assert json.loads(found.params["rope"]) == {
        "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25, "rope_theta": 10000.0,
        "rope_type": "default",
    }  # fmt: skip


def test_layer_kinds_are_listed_or_by_interval_and_must_agree() -> None:
    name, listed = "qwen3_5_text", ["full_attention", "linear_attention"] * 2
    assert understood(changed(name, layer_types=listed)).circuit.layer_kinds == tuple(listed)
    by_two = changed(name, layer_types=..., full_attention_interval=2)
    assert understood(by_two).circuit.layer_kinds == ("linear_attention", "full_attention") * 2
    with pytest.raises(RefusedConfig, match="layer_types contradicts full_attention_interval = 2"):
        understood(changed(name, full_attention_interval=2))
    with pytest.raises(RefusedConfig, match="layer 1 is 'mamba'"):
        understood(changed(name, layer_types=["linear_attention", "mamba", *listed[:2]]))


@pytest.mark.parametrize(("outer", "inner", "tied"), [(1, 0, 1), (0, 1, 0), (None, 1, 0)])
def test_the_outer_config_says_whether_the_head_is_tied(
    outer: int | None, inner: int, tied: int
) -> None:
    """As the model classes do it, whatever the inner config says."""
    config = dict(TINY["qwen3_5"])
    config["text_config"] = {**config["text_config"], "tie_word_embeddings": bool(inner)}  # type: ignore[dict-item]
    config.pop("tie_word_embeddings")
    if outer is not None:
        config["tie_word_embeddings"] = bool(outer)
    head = next(node for node in circuit_of(config).nodes if node.op == "lm_head")
    assert head.binding == (("model.language_model.embed_tokens",) if tied else ("lm_head",))


@pytest.mark.parametrize("name", FLAT)
@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("hidden_act", "gelu", "SwiGLU"),
        ("attention_bias", True, "no bias"),
        ("attn_output_gate", False, "gated"),
        ("output_gate_type", "sigmoid", "silu"),
        ("mamba_ssm_dtype", "bfloat16", "f32"),
        ("mtp_use_dedicated_embeddings", True, "embedding table"),
        ("mtp_num_hidden_layers", 2, "only 0, 1 is supported"),
        ("partial_rotary_factor", 0.5, "contradicts"),
        ("quantization", {"bits": 4}, "quantised"),
    ],
)
def test_what_the_circuit_does_not_express_is_refused_by_name(
    name: str, key: str, value: object, why: str
) -> None:
    with pytest.raises(RefusedConfig, match=rf"some/config\.json: .*{key} = .*{why}"):
        understood(changed(name, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("mlp_only_layers", [0], "every layer has experts"),
        ("decoder_sparse_step", 2, "every layer has experts"),
        ("norm_topk_prob", False, "sum to 1"),
    ],
)
def test_the_experts_of_every_layer_are_required(key: str, value: object, why: str) -> None:
    with pytest.raises(RefusedConfig, match=rf"{key} = .*{why}"):
        understood(changed("qwen3_5_moe_text", **{key: value}))


@pytest.mark.parametrize(
    ("rope", "why"),
    [
        ({"rope_type": "yarn", "factor": 4.0}, r"rope_parameters\.factor = 4\.0.*not implemented"),
        ({"rope_type": "yarn"}, "default are supported"),
        ({"mrope_interleaved": False}, "interleaved"),
        ({"partial_rotary_factor": 1.5}, "at most 1"),
        ({"partial_rotary_factor": 0.2}, "rotary_dim = 3 is no multiple of 2"),
        ({"beta_fast": 32}, r"'rope_parameters\.beta_fast' is not classified"),
    ],
)
def test_positions(rope: dict[str, object], why: str) -> None:
    with pytest.raises(RefusedConfig, match=why):
        understood(changed("qwen3_5_text", rope_parameters=rope))


def test_unclassified_keys_are_refused_inside_and_beside() -> None:
    config = dict(TINY["qwen3_5"])
    with pytest.raises(RefusedConfig, match="'num_experts' is not classified by qwen3_5"):
        understood({**config, "text_config": {**config["text_config"], "num_experts": 4}})  # type: ignore[dict-item]
    with pytest.raises(RefusedConfig, match="'audio_config' is not classified"):
        understood({**config, "audio_config": {}})
    with pytest.raises(RefusedConfig, match="the key 'text_config' is missing"):
        understood({key: value for key, value in config.items() if key != "text_config"})


def test_the_declared_precision_is_read_beside_the_text_config() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    config = published("35B-A3B")
    node = next(
        node
        for node in circuit_of({**config, "quantization_config": blocks}).nodes
        if node.op == "expert_down"
    )
    assert node.weight_format == "fp8/block128x128"
    inner = {**config["text_config"], "quantization_config": blocks}  # type: ignore[dict-item]
    with pytest.raises(RefusedConfig, match="move it there"):
        understood({**config, "text_config": inner})


def test_a_library_of_keys_may_not_classify_twice() -> None:
    text = 'schema = 1\ninclude = ["one", "two"]\n'
    library = 'schema = 1\n[keys]\nuse_cache = "ignore"\n'
    with pytest.raises(BadCircuit, match=r"two has keys\.use_cache"):
        parse_config_map(text, "m", {"one": library, "two": library})
    with pytest.raises(BadCircuit, match=r"there is no keys/two\.toml"):
        parse_config_map(text, "m", {"one": library})
    with pytest.raises(BadCircuit, match="unknown key 'layers'"):
        parse_config_map(text, "m", {"one": "schema = 1\n[layers]\n", "two": library})
