"""Stored weights and derived copies: a toy by hand, the shipped models by their published parts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from metpipe.circuit import circuit_from_config, tensor_bytes, weight_bytes, weight_matrix
from metpipe.circuit.rows import count_rows
from metpipe.errors import ConfigError
from metpipe.memory.met.copies import CopyRule, Weight, copies_of, law_bytes
from metpipe.memory.met.flags import met_flags
from metpipe.memory.met.served import head_format, served_format
from metpipe.memory.met.weights import weights_of
from metpipe.resources import kernels_dir

from .points import DEFAULT, MIB, RECIPE_27B, circuit_of, model_of, point_of

NVFP4 = {"type": "float", "num_bits": 4, "strategy": "tensor_group", "group_size": 16}
TOY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 512, "tie_word_embeddings": False,
    "quantization_config": {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"weights": NVFP4, "targets": ["re:.*mlp.*"]}},
    },
}  # fmt: skip
FLAGS = met_flags(DEFAULT)
SETTINGS = {"speculative": "on", "moe_expert_tables": "build"}


def toy(**changes):
    return circuit_from_config(TOY | changes, kernels_dir())


def rule(**changes):
    fields = {
        "id": "r", "arch": ("dense_gqa",), "ops": ("linear:gate_up",), "section": "main",
        "stored": (), "served": (), "when": {}, "law": "nvfp4/g16", "count": 1, "leaked": False,
        "site": "here",
    }  # fmt: skip
    return CopyRule(**fields | changes)


def stored_of(circuit, rules=(), settings=SETTINGS):
    return {node.node: node for node in weights_of(circuit, FLAGS, rules, settings).nodes}


def test_a_toy_by_hand():
    nodes = stored_of(toy())
    assert nodes["embed.embed"].stored == 256 * 64 * 2 == 32768
    assert nodes["head.lm_head"].stored == 32768
    for layer in range(2):
        # 256 x 64 in pairs, a scale per 16, one global; then 64 x 128
        assert nodes[f"l{layer}.dense_ffn.gate_up"].stored == 8192 + 1024 + 4
        assert nodes[f"l{layer}.dense_ffn.down"].stored == 4096 + 512 + 4
        assert nodes[f"l{layer}.attn.q"].stored == 64 * 64 * 2
        assert nodes[f"l{layer}.attn.input_norm"].stored == 0


def test_copies_of_a_toy():
    weight = Weight("dense_gqa", "main", "linear:gate_up", "bf16", "nvfp4/g16", 256, 64, 1)
    leak = rule(id="leak", when={"speculative": "on"}, count=2, leaked=True)
    assert law_bytes("bf16", 256, 64) == 32768
    assert [size for _, size in copies_of(weight, (rule(),), SETTINGS)] == [9220]
    both = copies_of(weight, (rule(), leak), SETTINGS)
    assert sum(size for _, size in both) == 3 * 9220
    assert sum(size for found, size in both if found.leaked) == 2 * 9220
    off = copies_of(weight, (rule(), leak), SETTINGS | {"speculative": "off"})
    assert sum(size for _, size in off) == 9220


def test_leaks_of_a_circuit_are_counted_among_its_copies():
    rules = (rule(), rule(id="leak", leaked=True, count=2))
    weights = weights_of(toy(), FLAGS, rules, SETTINGS)
    assert (weights.derived, weights.leaked) == (2 * 3 * 9220, 2 * 2 * 9220)


def test_experts_are_counted_all_whatever_the_rows():
    assert law_bytes("nvfp4/g16", 64, 64) == 2308
    assert law_bytes("nvfp4/g16", 64, 32) == 1156
    weight = Weight("x", "main", "expert_down", "nvfp4/g16", "nvfp4/g16", 64, 32, 16)
    found = copies_of(weight, (rule(arch=("x",), ops=("expert_down",)),), SETTINGS)
    assert [size for _, size in found] == [16 * 1156]


def test_routed_experts_hold_the_same_at_any_rows_and_write_a_row_for_each_choice():
    """16 experts of 64 -> 32, two for each row: what they store, and what they write."""
    path = Path(__file__).parents[2] / "circuit" / "data" / "family_configs.json"
    config = json.loads(path.read_text())["minimax_m2"] | {
        "hidden_size": 64, "num_local_experts": 16, "num_experts_per_tok": 2,
        "intermediate_size": 32, "num_hidden_layers": 1,
    }  # fmt: skip
    circuit = circuit_from_config(config, kernels_dir())
    stored = {node.node: node.stored for node in weights_of(circuit, FLAGS, (), SETTINGS).nodes}
    (gate_up, down) = (n for n in circuit.nodes if n.op in ("expert_gate_up", "expert_down"))
    assert weight_matrix(circuit, gate_up) == (64, 64)
    assert weight_matrix(circuit, down) == (64, 32)
    assert stored[gate_up.id] == 16 * 64 * 64 * 2
    assert 16 * weight_bytes("nvfp4/g16", 64, 64) == 16 * 2308
    edge = circuit.edges[gate_up.outputs[0]]
    for rows in (1, 64):
        written = tensor_bytes("bf16", count_rows(circuit, edge, rows, "prefill"), edge.dim)
        assert written == rows * 2 * 64 * 2


@pytest.mark.parametrize(
    ("law", "size"),
    [("row_scale_f32", 4 * 130), ("block_grid_f32/128x128", 4 * 2 * 3), ("fp8/tensor", 39004)],
)
def test_laws(law, size):
    assert law_bytes(law, 130, 300) == size


@pytest.mark.parametrize(
    "change",
    [
        {"arch": ("qwen3_5",)},
        {"section": "draft"},
        {"ops": ("linear:down",)},
        {"stored": ("fp8/channel",)},
        {"served": ("bf16",)},
        {"when": {"moe_expert_tables": "skip"}},
    ],
)
def test_a_rule_matches_only_where_everything_agrees(change):
    weight = Weight("dense_gqa", "main", "linear:gate_up", "bf16", "nvfp4/g16", 256, 64, 1)
    assert rule().matches(weight, SETTINGS)
    assert not rule(**change).matches(weight, SETTINGS)


def test_a_setting_that_nobody_states_is_no_off():
    weight = Weight("dense_gqa", "main", "linear:gate_up", "bf16", "nvfp4/g16", 256, 64, 1)
    with pytest.raises(KeyError):
        rule(when={"latent_moe": "on"}).matches(weight, SETTINGS)


def test_a_tied_head_stores_nothing_again():
    nodes = stored_of(toy(tie_word_embeddings=True))
    assert (nodes["embed.embed"].stored, nodes["head.lm_head"].stored) == (32768, 0)


@pytest.mark.parametrize(
    ("choice", "stored"),
    [
        ("qwen3_8_27b_nvfp4", 22_490_993_088),
        ("qwen3_6_35b_a3b_fp8", 36_563_511_552),
        ("qwen3_6_35b_a3b_nvfp4", 22_511_932_116),
        ("nemotron_3_nano_30b_a3b_nvfp4", 19_322_023_744),
    ],
)
def test_all_that_a_published_checkpoint_stores(choice, stored):
    flags = met_flags(DEFAULT)
    assert weights_of(circuit_of(choice), flags, (), SETTINGS).stored == stored


def test_the_large_one_as_published():
    """The published figure, 76828.05 MiB, is a sum of rounded parts."""
    stored = weights_of(circuit_of("qwen3_5_122b_a10b_nvfp4"), FLAGS, (), SETTINGS).stored
    assert stored / MIB == pytest.approx(76828.05, abs=0.1)


PARTS_27B = {
    "embed.embed": (2425.0, 0),
    "gdn.qkvz": (3840.9, 8160.0),
    "gdn.ba": (45.0, 45.0),
    "gdn.out": (1441.1, 3060.0),
    "dense_ffn.gate_up": (6715.2, 6885.0),
    "dense_ffn.down": (3358.0, 3442.5),
    "attn.q": (960.3, 1080.0),
    "attn.k": (80.3, 90.0),
    "attn.v": (80.3, 90.0),
    "attn.o": (480.4, 540.0),
    "head.lm_head": (1212.5, 2425.0),
    "draft.mtp_in.fc": (100, 0),
    "draft.attn.q": (120, 0),
    "draft.attn.k": (10, 0),
    "draft.attn.v": (10, 0),
    "draft.attn.o": (60, 0),
    "draft.dense_ffn.gate_up": (340, 0),
    "draft.dense_ffn.down": (170, 0),
    "draft.mtp_out.lm_head": (0, 682.0),
}


def test_parts_of_the_dense_hybrid_as_published():
    stored, derived = Counter(), Counter()
    for node in point_of("qwen3_8_27b_nvfp4", RECIPE_27B).met.weights.nodes:
        key = node.node if node.layer is None else node.node.partition(".")[2]
        stored[key] += node.stored
        derived[key] += sum(copy.bytes for copy in node.derived)
    found = {
        key: (round(stored[key] / MIB, 1), round(derived[key] / MIB, 1))
        for key in stored
        if stored[key] or derived[key]
    }
    assert found == PARTS_27B


@pytest.mark.parametrize(
    ("choice", "rule_id", "mib"),
    [
        ("qwen3_6_35b_a3b_fp8", "moe-gdn-qkvz-concat", 720),
        ("qwen3_6_35b_a3b_fp8", "moe-attn-fp8-prefill-twin", 260),
        ("qwen3_6_35b_a3b_fp8", "moe-shared-expert-nvfp4", 68),
        ("qwen3_6_35b_a3b_nvfp4", "moe-nvfp4-expert-twin", 17348),
        ("qwen3_6_35b_a3b_nvfp4", "moe-nvfp4-shared-fp8-predequant", 120),
        ("qwen3_6_35b_a3b_nvfp4", "head-nvfp4-twin", 273),
        ("nemotron_3_nano_30b_a3b_nvfp4", "nemotron-expert-twin", 15758),
        ("nemotron_3_nano_30b_a3b_nvfp4", "nemotron-mamba-fp8-predequant", 628),
        ("nemotron_3_nano_30b_a3b_nvfp4", "head-nvfp4-twin", 189),
        ("nemotron_3_super_120b_a12b_nvfp4", "nemotron-expert-twin", 0),
    ],
)
def test_what_each_copy_costs_a_serve(choice, rule_id, mib):
    nodes = point_of(choice, {"weight_quantization": "nvfp4"}).met.weights.nodes
    found = sum(copy.bytes for node in nodes for copy in node.derived if copy.rule == rule_id)
    assert round(found / MIB) == mib


def test_tiers_move_the_feed_forward_of_the_dense_hybrid():
    """Under the declared tier 56 layers are repacked for the integer kernels, under nvfp4 all."""
    for tier, mib in (("declared", 8033), ("nvfp4", 9180)):
        serve = RECIPE_27B | {"weight_quantization": tier}
        nodes = point_of("qwen3_8_27b_nvfp4", serve).met.weights.nodes
        copies = [copy for node in nodes for copy in node.derived]
        repacked = sum(copy.bytes for copy in copies if copy.rule == "dense-ffn-mmq-repack")
        assert round(repacked / MIB) == mib


def flags(**changes):
    return met_flags(DEFAULT | changes)


@pytest.mark.parametrize(
    ("declared", "changes", "served"),
    [
        ("fp8/channel", {}, "fp8/channel"),
        ("fp8/channel", {"weight_quantization": "nvfp4"}, "nvfp4/g16"),
        ("fp8/channel", {"lm_head_dtype": "fp8", "weight_quantization": "nvfp4"}, "fp8/channel"),
        ("fp8/channel", {"lm_head_dtype": "bf16", "weight_quantization": "nvfp4"}, "bf16"),
        ("bf16", {"lm_head_dtype": "nvfp4"}, "nvfp4/g16"),
        ("bf16", {}, "bf16"),
    ],
)
def test_the_heads_format(declared, changes, served):
    assert head_format(declared, flags(**changes)) == served


def test_an_fp8_head_of_a_bf16_one_is_refused():
    with pytest.raises(ConfigError, match=r"serve\.lm_head_dtype=fp8: the checkpoint's head is bf"):
        head_format("bf16", flags(lm_head_dtype="fp8"))


@pytest.mark.parametrize(
    ("node", "changes", "served"),
    [
        ("l0.gdn.qkvz", {}, "fp8/channel"),
        ("l0.gdn.qkvz", {"weight_quantization": "nvfp4"}, "nvfp4/g16"),
        ("l0.gdn.ba", {"weight_quantization": "nvfp4"}, "bf16"),
        ("draft.attn.q", {"weight_quantization": "nvfp4"}, "bf16"),
        ("draft.attn.q", {"mtp_quantization": "nvfp4"}, "nvfp4/g16"),
        ("draft.mtp_out.lm_head", {"speculative": True}, "nvfp4/g16"),
        ("draft.mtp_out.lm_head", {}, "bf16"),
        ("head.lm_head", {}, "bf16"),
    ],
)
def test_the_served_format_of_a_node(node, changes, served):
    (found,) = [n for n in circuit_of("qwen3_8_27b_nvfp4").nodes if n.id == node]
    assert served_format(found, flags(**changes), "bf16") == served


@pytest.mark.parametrize(
    "choice", ["qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_fp8", "qwen3_5_122b_a10b_nvfp4"]
)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_setting_that_a_rule_reads_is_stated(choice, number):
    settings = point_of(choice, {}, number=number).met.settings
    asked = {name for found in model_of(choice, number).rules for name in found.when}
    assert asked <= set(settings)
