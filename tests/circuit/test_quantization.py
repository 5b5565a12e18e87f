"""What a checkpoint declares about its weights: read, or refused by name."""

from __future__ import annotations

import pytest

from metpipe.circuit import (
    BadCircuit,
    Precision,
    PrecisionRow,
    RefusedConfig,
    Situation,
    Uncovered,
    fuse,
    read_rules,
)
from metpipe.circuit.quantization import declared_precision
from metpipe.resources import kernels_dir

from .families import resolve
from .toy import every_kernel

NVFP4 = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
FP8_CHANNEL = {"type": "float", "num_bits": 8, "strategy": "channel"}
FP8_TOKEN = {"type": "float", "num_bits": 8, "strategy": "token", "dynamic": True}


def compressed(weights: object, inputs: object = None, **more: object) -> dict[str, object]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


def mixed(layers: object, **more: object) -> dict[str, object]:
    return {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers,
        **more,
    }  # fmt: skip


def formats(table: object, module: str = "model.layers.0.mlp.down_proj") -> tuple[str, str]:
    row = declared_precision(table, "config.json").precision.of(module)
    return row.weight, row.activation


def test_no_quantization_is_bf16() -> None:
    assert formats(None) == ("bf16", "bf16")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (compressed(NVFP4, NVFP4), ("nvfp4/g16", "nvfp4/g16")),
        (compressed(NVFP4), ("nvfp4/g16", "bf16")),
        (compressed(FP8_CHANNEL, FP8_TOKEN), ("fp8/channel", "fp8/token")),
        (compressed({**FP8_CHANNEL, "strategy": "tensor"}), ("fp8/tensor", "bf16")),
        (compressed({**FP8_CHANNEL, "strategy": "group", "group_size": 128}), ("fp8/g128", "bf16")),
        (
            compressed({**FP8_CHANNEL, "strategy": "block", "block_structure": [128, 64]}),
            ("fp8/block128x64", "bf16"),
        ),
        (
            compressed({**FP8_CHANNEL, "strategy": "block", "block_structure": "128x128"}),
            ("fp8/block128x128", "bf16"),
        ),
        (
            {"quant_method": "fp8", "weight_block_size": [128, 128]},
            ("fp8/block128x128", "bf16"),
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, ("nvfp4/g16", "nvfp4/g16")),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, ("fp8/tensor", "fp8/tensor")),
        ({"quant_method": "modelopt", "quant_algo": "W4A16_NVFP4"}, ("nvfp4/g16", "bf16")),
        ({"quant_method": "mxfp4"}, ("mxfp4/g32", "bf16")),
        (mixed({"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}}), ("fp8/tensor",) * 2),
        (mixed({"model.layers.1.mlp.down_proj": {"quant_algo": "FP8"}}), ("bf16", "bf16")),
    ],
)
def test_declared_formats(table: dict[str, object], expected: tuple[str, str]) -> None:
    assert formats(table) == expected


@pytest.mark.parametrize(
    ("ignore", "module"),
    [
        (["lm_head"], "lm_head"),
        (["re:.*down_proj"], "model.layers.0.mlp.down_proj"),
        (["model.layers.*.mlp*"], "model.layers.0.mlp.down_proj"),
    ],
)
def test_an_ignored_module_is_bf16(ignore: list[str], module: str) -> None:
    assert formats(compressed(NVFP4, ignore=ignore), module) == ("bf16", "bf16")
    assert formats(compressed(NVFP4, ignore=ignore), "model.layers.1.self_attn.q_proj")[0] != "bf16"


@pytest.mark.parametrize(
    ("table", "quantised"),
    [
        (compressed(NVFP4, ignore=["model.layers.0.mlp"]), True),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.0.mlp"]},
            False,
        ),
    ],
)
def test_only_some_methods_leave_alone_what_is_within(table: object, quantised: bool) -> None:
    assert (formats(table)[0] != "bf16") == quantised


def test_an_export_states_no_strategy() -> None:
    """A scale per tensor for 8 bits, one per group for 4."""
    eight, four = ({"type": "float", "num_bits": bits} for bits in (8, 4))
    table = {
        "quant_method": "modelopt",
        "config_groups": {
            "group_0": {"targets": ["m.a"], "weights": eight, "input_activations": eight},
            "group_1": {"targets": ["m.b"], "weights": {**four, "group_size": 16}},
        },
    }
    assert formats(table, "m.a") == ("fp8/tensor", "fp8/tensor")
    assert formats(table, "m.b") == ("nvfp4/g16", "bf16")


@pytest.mark.parametrize(("stated", "experts"), [("fp4", "mxfp4/g32"), ("fp8", "fp8/block128x128")])
def test_routed_experts_may_have_a_format_of_their_own(stated: str, experts: str) -> None:
    table = {"quant_method": "fp8", "weight_block_size": [128, 128], "expert_dtype": stated}
    assert formats(table, "layers.0.ffn.experts.*.w1")[0] == experts
    assert formats(table, "layers.0.ffn.shared_experts.w1")[0] == "fp8/block128x128"


def test_an_export_over_blocks_of_fp8_leaves_the_base_to_the_rest() -> None:
    base = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    table = {
        **base,
        "modules_to_not_convert": ["m.head"],
        "quantized_layers": {"m.0.experts": {"quant_algo": "NVFP4", "group_size": 16}},
    }
    assert formats(table, "m.0.experts.*.w1")[0] == "nvfp4/g16"
    assert formats(table, "m.0.attn.q")[0] == "fp8/block128x128"
    assert formats(table, "m.head")[0] == "bf16"


def test_a_container_of_experts_covers_those_that_nobody_names() -> None:
    group = {"targets": ["m.0.mlp.experts"], "weights": NVFP4}
    named = {"targets": ["m.0.mlp.experts.0.down_proj"], "weights": FP8_CHANNEL}
    table = {"quant_method": "modelopt", "config_groups": {"group_0": group, "group_1": named}}
    assert formats(table, "m.0.mlp.experts.*.up_proj")[0] == "nvfp4/g16"
    assert formats(table, "m.0.mlp.experts.*.down_proj")[0] == "fp8/channel"
    assert formats(table, "m.0.mlp.shared_expert.up_proj")[0] == "bf16"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, "quant_method 'awq'"),
        ({"bits": 4}, "quant_method None"),
        ([], "must be an object"),
        (compressed({"type": "int", "num_bits": 4, "strategy": "group"}), "type 'int', 4 bits"),
        (compressed({**FP8_CHANNEL, "strategy": "token"}), "strategy 'token'"),
        (compressed({"type": "float", "num_bits": 8}), "strategy None"),
        (compressed({**NVFP4, "group_size": None}), "group_size = None"),
        (compressed(NVFP4, {**FP8_TOKEN, "type": "int"}), "activations of type 'int'"),
        (compressed(None), "weights must be an object"),
        ({"quant_method": "compressed-tensors"}, "no config_groups"),
        ({"quant_method": "fp8"}, "weight_block_size = None"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ'"),
        (
            {"quant_method": "fp8", "weight_block_size": [1, 1], "expert_dtype": "int4"},
            "expert_dtype = 'int4'",
        ),
        (mixed({"m.a": {"quant_algo": "W8A8"}}), "m.a has quant_algo 'W8A8'"),
        (mixed(["m.a"]), "quantized_layers must be an object"),
        (compressed(NVFP4, ignore="lm_head"), "must be a list of names"),
        (
            compressed({**FP8_CHANNEL, "strategy": "block", "block_structure": [128]}),
            "block_structure",
        ),
        (compressed(NVFP4, kv_cache_scheme={"type": "int", "num_bits": 8}), "KV cache"),
        (compressed(NVFP4, kv_cache_scheme={"type": "float"}), "KV cache"),
        ({"quant_method": "fp8", "weight_block_size": [128, None]}, "weight_block_size"),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"group_0": None}},
            "the group must be an object",
        ),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": "16"},
            "group_size = '16'",
        ),
    ],
)
def test_what_is_not_understood_is_refused_by_name(table: object, message: str) -> None:
    with pytest.raises(RefusedConfig, match=rf"config\.json: quantization_config.*{message}"):
        declared_precision(table, "config.json")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (None, "bf16"),
        (compressed(NVFP4, kv_cache_scheme=None), "bf16"),
        (compressed(NVFP4, kv_cache_scheme={"type": "float", "num_bits": 8}), "fp8/tensor"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"},
            "fp8/tensor",
        ),
    ],
)
def test_the_declared_cache_format(table: object, expected: str) -> None:
    assert declared_precision(table, "config.json").kv_format == expected


def test_a_quantised_checkpoint_has_a_circuit_that_says_so() -> None:
    found = resolve("llama", quantization_config=compressed(NVFP4, ignore=["lm_head"]))
    formats = {node.local: node.weight_format for node in found.circuit.nodes}
    assert formats["gate_up"] == formats["q"] == "nvfp4/g16"
    assert formats["lm_head"] == formats["embed"] == formats["input_norm"] == "bf16"
    assert formats["act"] is None


def test_a_head_tied_to_the_table_has_the_table_s_format() -> None:
    found = resolve("llama", tie_word_embeddings=True, quantization_config=compressed(NVFP4))
    formats = {node.local: node.weight_format for node in found.circuit.nodes}
    assert (formats["embed"], formats["lm_head"], formats["o"]) == ("bf16", "bf16", "nvfp4/g16")


def test_a_kernel_set_for_bf16_weights_does_not_take_them() -> None:
    rules = read_rules(kernels_dir() / "cpu")
    made = resolve("llama", quantization_config=compressed(NVFP4)).circuit
    with pytest.raises(Uncovered, match="nvfp4/g16"):
        fuse(made, rules, Situation("decode", 1, every_kernel(rules)))


def test_modules_of_one_matrix_have_one_format() -> None:
    mixed = compressed(NVFP4, ignore=["re:.*up_proj"])
    with pytest.raises(BadCircuit, match=r"the modules of l0\.dense_ffn\.gate_up have different"):
        resolve("llama", quantization_config=mixed)


def test_a_table_that_does_not_end_in_a_catch_all_says_so() -> None:
    table = Precision("mine", (PrecisionRow("lm_head", "bf16"),))
    with pytest.raises(BadCircuit, match=r"mine: no row covers the module 'model\.norm'"):
        table.of("model.norm")
