"""The dense circuit of the four families: nodes, weights, states, plans."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from metpipe.circuit import (
    RuleSet,
    Select,
    Situation,
    circuit_from_config,
    fuse,
    golden_name,
    golden_text,
    node_weight_shapes,
    read_rules,
    weight_matrix,
)
from metpipe.resources import kernels_dir

from .families import DATA, FAMILIES, circuit, config, frozen
from .toy import every_kernel

ATTN = ["input_norm", "q", "k", "v", "rope", "kv_write", "attend", "o", "add"]
NORMED = ["input_norm", "q", "k", "v", "q_norm", "k_norm", "rope", "kv_write", "attend", "o", "add"]
FFN = ["post_norm", "gate_up", "act", "down", "add"]
TENSORS = frozen("tensors.json")
CONFIGS = frozen("configs.json")


@pytest.mark.parametrize("model_type", FAMILIES)
def test_the_nodes_of_a_layer(model_type: str) -> None:
    made = circuit(model_type)
    for layer in range(2):
        inside = [(node.block, node.local) for node in made.nodes if node.layer == layer]
        attention = NORMED if model_type == "qwen3" else ATTN
        assert inside == [*(("attn", n) for n in attention), *(("dense_ffn", n) for n in FFN)]
    outside = [node.id for node in made.nodes if node.layer is None]
    assert outside == ["embed.embed", "head.final_norm", "head.lm_head", "head.argmax"]


@pytest.mark.parametrize(
    ("model_type", "per_layer"), list(zip(FAMILIES, (14, 14, 16, 14), strict=True))
)
def test_the_number_of_nodes(model_type: str, per_layer: int) -> None:
    assert len(circuit(model_type, num_hidden_layers=7).nodes) == 7 * per_layer + 4


@pytest.mark.parametrize(("model_type"), FAMILIES)
def test_a_layer_ends_where_the_next_begins(model_type: str) -> None:
    made = circuit(model_type)
    readers = [made.nodes[index].id for index in made.edges["l0.dense_ffn.y"].consumers]
    assert readers == ["l1.attn.input_norm", "l1.attn.add"]


@pytest.mark.parametrize(
    ("model_type", "keys", "biased"),
    [
        ("llama", {}, set()),
        ("llama", {"attention_bias": True}, {"q", "k", "v", "o"}),
        ("llama", {"mlp_bias": True}, {"gate_up", "down"}),
        ("qwen2", {}, {"q", "k", "v"}),
        ("qwen2", {"attention_bias": False}, {"q", "k", "v"}),
        ("qwen3", {"attention_bias": True}, {"q", "k", "v", "o"}),
        ("mistral", {}, set()),
    ],
)
def test_biases(model_type: str, keys: dict[str, object], biased: set[str]) -> None:
    made = circuit(model_type, **keys)
    assert {node.local for node in made.nodes if node.has_bias} == biased


@pytest.mark.parametrize("name", TENSORS)
def test_the_circuit_reads_exactly_the_tensors_of_the_checkpoint(name: str) -> None:
    """Names and shapes as the model classes of transformers 5.24 have them."""
    made = circuit_from_config(CONFIGS[f"{name} (saved)"], kernels_dir())
    read = {t: list(s) for node in made.nodes for t, s in node_weight_shapes(made, node)}
    assert read == TENSORS[name]


def test_a_tied_head_reads_the_embedding_table() -> None:
    tied, own = circuit("llama", tie_word_embeddings=True), circuit("llama")
    heads = [next(n for n in made.nodes if n.op == "lm_head") for made in (tied, own)]
    assert [head.binding for head in heads] == [("model.embed_tokens",), ("lm_head",)]


def test_gate_and_up_are_one_matrix() -> None:
    made = circuit("llama")
    node = next(node for node in made.nodes if node.id == "l1.dense_ffn.gate_up")
    assert weight_matrix(made, node) == (2 * 96, 64)
    assert node.binding == ("model.layers.1.mlp.gate_proj", "model.layers.1.mlp.up_proj")
    assert node_weight_shapes(made, node) == (
        ("model.layers.1.mlp.gate_proj.weight", (96, 64)),
        ("model.layers.1.mlp.up_proj.weight", (96, 64)),
    )


def test_the_cache_of_each_layer() -> None:
    made = circuit("llama")
    assert list(made.states) == ["l0.attn.k", "l0.attn.v", "l1.attn.k", "l1.attn.v"]
    state = made.states["l1.attn.v"]
    assert (state.local, state.kind, state.lifetime) == ("attn.v", "paged_kv", "model")
    assert (state.format, state.elements, state.shape) == ("{kv_cache_dtype}", 32, (2, 16))


def test_the_head_runs_over_sequences_and_is_read_from_outside() -> None:
    made = circuit("llama")
    assert {made.edges[f"head.{edge}"].rows for edge in ("xn", "logits", "tokens")} == {"s"}
    buffers = {edge.buffer: edge.format for edge in made.edges.values() if edge.buffer}
    assert buffers == {"logits": "bf16", "tokens": "i32"}


def rules_of_cpu() -> tuple[RuleSet, frozenset[str]]:
    rules = read_rules(kernels_dir() / "cpu")
    return rules, every_kernel(rules)


@pytest.mark.parametrize("model_type", FAMILIES)
@pytest.mark.parametrize("select", [Select.reference(), Select.all()], ids=["reference", "all"])
@pytest.mark.parametrize(("mode", "rows"), [("decode", 1), ("multi_seq", 8), ("prefill", 64)])
def test_the_cpu_set_covers_the_family(
    model_type: str, select: Select, mode: str, rows: int
) -> None:
    rules, kernels = rules_of_cpu()
    made = circuit(
        model_type, attention_bias=False, **({} if model_type != "llama" else {"mlp_bias": True})
    )
    plan = fuse(made, rules, Situation(mode, rows, kernels, select=select))
    if select.kind == "reference":
        assert len(plan.groups) == len(made.nodes)
        assert {rule.numerics.kind for rule in (g.rule for g in plan.groups)} == {"reference"}
    else:
        kinds = Counter(group.rule.numerics.kind for group in plan.groups)
        assert kinds["bit_identical"] >= 4 * 2
    assert plan.launches(rows) == len(plan.groups)


@pytest.mark.parametrize(("mode", "rows"), [("decode", 1), ("prefill", 64)])
def test_the_golden_plan(mode: str, rows: int) -> None:
    """A change of rules, circuit or fuser shows here as a readable difference.

    Where the change is meant, run this test once with METPIPE_UPDATE_GOLDEN=1.
    """
    rules, kernels = rules_of_cpu()
    made = fuse(circuit("qwen3", head_dim=16), rules, Situation(mode, rows, kernels))
    golden = DATA / golden_name(made, "qwen3.cpu")
    text = golden_text(made, {"kernel set": "cpu", "levers": "none"})
    if os.environ.get("METPIPE_UPDATE_GOLDEN") == "1":
        golden.write_text(text)
    assert text == golden.read_text()


def test_the_same_config_gives_the_same_plan() -> None:
    rules, kernels = rules_of_cpu()
    situation = Situation("decode", 1, kernels)
    digests = {
        fuse(circuit_from_config(config("llama"), kernels_dir()), rules, situation).digest()
        for _ in range(2)
    }
    assert len(digests) == 1
