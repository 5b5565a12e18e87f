"""The circuits of the hybrids: nodes, tensors, norms, states, draft head, refusals of rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from metpipe.circuit import (
    Circuit,
    Kernel,
    Select,
    Situation,
    Uncovered,
    fuse,
    is_outside,
    node_weight_shapes,
    weight_matrix,
)
from metpipe.circuit.vocabulary import NORMS

from .hybrids import TENSORS, TINY, circuit_of, published
from .toy import every_kernel, rule, rule_set

GDN = ["input_norm", "qkvz", "ba", "gates", "conv", "l2", "recur", "out_norm", "out", "add"]
ATTN = [
    "input_norm", "q", "q_split", "k", "v", "q_norm", "k_norm", "rope", "kv_write", "attend",
    "gate_mul", "o", "add",
]  # fmt: skip
DENSE = ["post_norm", "gate_up", "act", "down", "add"]
MOE = [
    "post_norm", "router", "top_k", "experts_gate_up", "experts_act", "experts_down",
    "shared_gate_up", "shared_act", "shared_down", "shared_gate", "blend", "add",
]  # fmt: skip
FFN = {"qwen3_5_text": ("dense_ffn", DENSE), "qwen3_5_moe_text": ("moe_ffn", MOE)}
MTP_IN = ["embed", "embed_norm", "hidden_norm", "join", "fc"]
HEAD = ["final_norm", "lm_head", "argmax"]

MTP_ATTENTION = {
    "mtp.fc.weight": (48, 96),
    "mtp.pre_fc_norm_embedding.weight": (48,),
    "mtp.pre_fc_norm_hidden.weight": (48,),
    "mtp.norm.weight": (48,),
    "mtp.layers.0.input_layernorm.weight": (48,),
    "mtp.layers.0.post_attention_layernorm.weight": (48,),
    "mtp.layers.0.self_attn.q_proj.weight": (192, 48),
    "mtp.layers.0.self_attn.k_proj.weight": (32, 48),
    "mtp.layers.0.self_attn.v_proj.weight": (32, 48),
    "mtp.layers.0.self_attn.o_proj.weight": (48, 96),
    "mtp.layers.0.self_attn.q_norm.weight": (16,),
    "mtp.layers.0.self_attn.k_norm.weight": (16,),
}
MTP_DENSE = {
    "mtp.layers.0.mlp.gate_proj.weight": (80, 48),
    "mtp.layers.0.mlp.up_proj.weight": (80, 48),
    "mtp.layers.0.mlp.down_proj.weight": (48, 80),
}
MTP_MOE = {
    "mtp.layers.0.mlp.gate.weight": (5, 48),
    "mtp.layers.0.mlp.experts.gate_up_proj": (5, 40, 48),
    "mtp.layers.0.mlp.experts.down_proj": (5, 48, 20),
    "mtp.layers.0.mlp.shared_expert.gate_proj.weight": (28, 48),
    "mtp.layers.0.mlp.shared_expert.up_proj.weight": (28, 48),
    "mtp.layers.0.mlp.shared_expert.down_proj.weight": (48, 28),
    "mtp.layers.0.mlp.shared_expert_gate.weight": (1, 48),
}
STACKED = [name for name in MTP_MOE if ".experts." in name]


def bound(made: Circuit, section: str, stored: object = ()) -> Counter[str]:
    """How many nodes of a section read each tensor."""
    return Counter(
        name
        for node in made.nodes
        if node.section == section
        for name, _ in node_weight_shapes(made, node, stored)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("model_type", FFN)
def test_the_nodes_of_each_layer_and_of_the_draft(model_type: str) -> None:
    made, (ffn, nodes) = circuit_of(TINY[model_type]), FFN[model_type]
    for layer, kind in enumerate(["gdn", "gdn", "gdn", "attn"]):
        inside = [(node.block, node.local) for node in made.nodes if node.layer == layer]
        mixer = GDN if kind == "gdn" else ATTN
        assert inside == [*((kind, n) for n in mixer), *((ffn, n) for n in nodes)]
    draft = [node.local for node in made.nodes if node.section == "draft"]
    assert draft == [*MTP_IN, *ATTN, *nodes, *HEAD]


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_of_the_checkpoint_is_bound_once_with_its_shape(name: str) -> None:
    """Of random models as transformers 5.24 saves them; a vision tower is outside."""
    made, stored = circuit_of(TINY[name]), TENSORS[name]
    shapes = {t: list(s) for n in made.nodes for t, s in node_weight_shapes(made, n, stored)}
    inside = {tensor for tensor in stored if not is_outside(made, tensor)}
    assert {tensor: shapes[tensor] for tensor in shapes if tensor in inside} == {
        tensor: stored[tensor] for tensor in inside
    }
    counts = bound(made, "main", stored)
    assert set(counts) == inside
    table = next(node.binding[0] for node in made.nodes if node.op == "embed")
    twice = {f"{table}.weight"} if made.dims["tie"] else set()
    assert {tensor for tensor, count in counts.items() if count > 1} == twice


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_only_the_vision_tower_is_outside(name: str) -> None:
    made = circuit_of(TINY[name])
    outside = {tensor for tensor in TENSORS[name] if is_outside(made, tensor)}
    assert outside == {tensor for tensor in TENSORS[name] if ".visual." in tensor}
    assert outside
    assert not any(is_outside(made, tensor) for tensor in bound(made, "draft"))


@pytest.mark.parametrize("name", TINY)
def test_the_tensors_of_the_draft_head(name: str) -> None:
    made = circuit_of(TINY[name])
    ffn = MTP_MOE if "moe" in name else MTP_DENSE
    shapes = {
        tensor: shape
        for node in made.nodes
        if node.section == "draft"
        for tensor, shape in node_weight_shapes(made, node, STACKED)
        if tensor.startswith("mtp.")
    }
    assert shapes == {**MTP_ATTENTION, **ffn}
    shared = {tensor for tensor in bound(made, "draft") if not tensor.startswith("mtp.")}
    assert shared <= set(bound(made, "main"))


def test_the_draft_joins_the_embedding_and_the_stream_behind_the_last_layer() -> None:
    made = circuit_of(TINY["qwen3_5_text"])
    nodes = {node.id: node for node in made.nodes}
    assert nodes["draft.mtp_in.hidden_norm"].inputs == ("l3.dense_ffn.y",)
    assert nodes["draft.mtp_in.join"].inputs == ("draft.mtp_in.en", "draft.mtp_in.hn")
    assert nodes["head.final_norm"].inputs == ("l3.dense_ffn.y",)


@pytest.mark.parametrize("absent", [{"mtp_num_hidden_layers": 0}, {"mtp_num_hidden_layers": None}])
def test_a_config_without_a_draft_head_has_none(absent: dict[str, object]) -> None:
    made = circuit_of({**TINY["qwen3_5_text"], **absent})
    assert {node.section for node in made.nodes} == {"main"}
    assert {state.section for state in made.states.values()} == {"main"}


def test_experts_are_read_one_by_one_or_from_one_tensor() -> None:
    made = circuit_of(TINY["qwen3_5_moe_text"])
    node = next(node for node in made.nodes if node.id == "l2.moe_ffn.experts_gate_up")
    experts = "model.layers.2.mlp.experts"
    assert weight_matrix(made, node) == (40, 48)
    each = node_weight_shapes(made, node)
    assert each[:3] == (
        (f"{experts}.0.gate_proj.weight", (20, 48)),
        (f"{experts}.0.up_proj.weight", (20, 48)),
        (f"{experts}.1.gate_proj.weight", (20, 48)),
    )
    assert len(each) == 10
    whole = node_weight_shapes(made, node, {f"{experts}.gate_up_proj"})
    assert whole == ((f"{experts}.gate_up_proj", (5, 40, 48)),)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
def test_every_norm_adds_one_but_that_of_the_recurrent_output(name: str) -> None:
    made = circuit_of(TINY[name])
    forms = {node.id: node.params["weight_form"] for node in made.nodes if node.op in NORMS}
    plain = {node for node, form in forms.items() if form == "plain"}
    assert plain == {f"l{layer}.gdn.out_norm" for layer in range(3)}
    assert set(forms.values()) == {"plain", "one_plus"}


def test_states() -> None:
    made = circuit_of(TINY["qwen3_5_text"])
    h, conv, k = (made.states[name] for name in ("l0.gdn.h", "l0.gdn.conv", "l3.attn.k"))
    assert (h.kind, h.format, h.shape, h.verify) == (
        "recurrent", "{ssm_h_storage}", (6, 8, 12), "h_steps",
    )  # fmt: skip
    assert (conv.kind, conv.format, conv.shape, conv.verify) == (
        "recurrent", "f32", (104, 4), "conv_steps",
    )  # fmt: skip
    assert (k.kind, k.format, k.shape, k.verify) == (
        "paged_kv", "{kv_cache_dtype}", (2, 16), None,
    )  # fmt: skip
    draft = {state.id for state in made.states.values() if state.section == "draft"}
    assert draft == {"draft.attn.k", "draft.attn.v"}
    assert len(made.states) == 3 * 2 + 2 + 2


def test_what_a_kernel_must_know_stands_in_its_params() -> None:
    made = circuit_of(published("27B"))
    nodes = {node.id: node for node in made.nodes}
    assert nodes["l0.gdn.out_norm"].params["gate_offset"] == "10240"
    assert made.edges["l0.gdn.qkvz"].dim == 16384
    assert nodes["l0.gdn.qkvz"].binding_rows == (10240, 6144)
    assert nodes["l3.attn.rope"].params["rotary_dim"] == "64"
    assert float(nodes["l0.gdn.recur"].params["scale"]) == pytest.approx(128**-0.5, rel=1e-15)


def test_the_published_dense_hybrid_has_as_many_groups_as_its_ops() -> None:
    """48 x 15 + 16 x 18 + the embedding and the head's three."""
    made = circuit_of(published("27B"))
    assert sum(node.section == "main" for node in made.nodes) == 48 * 15 + 16 * 18 + 4


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize(
    ("mode", "rows"), [("decode", 1), ("verify", 4), ("prefill", 64), ("draft", 2)]
)
def test_a_rule_per_op_covers_every_mode(name: str, mode: str, rows: int) -> None:
    made = circuit_of(TINY[name])
    ops = {node.op for node in made.nodes}
    rules = rule_set(*(rule(op, [op], modes=[mode]) for op in ops))
    plan = fuse(made, rules, Situation(mode, rows, every_kernel(rules), select=Select.all()))
    section = "draft" if mode == "draft" else "main"
    assert len(plan.groups) == sum(node.section == section for node in made.nodes)


@pytest.mark.parametrize("extra", [{}, {"form": "0.param.weight_form"}], ids=["silent", "told"])
def test_a_norm_that_adds_one_is_taken_only_by_a_kernel_that_is_told(extra: dict[str, str]) -> None:
    """Else a kernel for weights as stored would run it, wrong and unnoticed."""
    made = circuit_of(TINY["qwen3_5_text"])
    others = [rule(op, [op]) for op in {node.op for node in made.nodes} - {"rms_norm"}]
    args = {"x": "0.in.0", "weight": "0.weight", "y": "0.out.0", **extra}
    norm = replace(rule("norm", ["rms_norm"]), kernels=(Kernel("k", "norm", args),))
    rules = rule_set(norm, *others)
    situation = Situation("decode", 1, every_kernel(rules), select=Select.all())
    if extra:
        assert fuse(made, rules, situation).groups
        return
    with pytest.raises(Uncovered, match="the node's weight_form is one_plus"):
        fuse(made, rules, situation)


@pytest.mark.parametrize("left_out", ["a_log", None])
def test_a_rule_must_take_every_tensor_of_a_node(left_out: str | None) -> None:
    """Else its kernel would compute without it, and nobody would notice."""
    made = circuit_of(TINY["qwen3_5_text"])
    others = [rule(op, [op]) for op in {node.op for node in made.nodes} - {"gdn_gates"}]
    args = {name: f"0.tensor.{name}" for name in ("a_log", "dt_bias") if name != left_out}
    args |= {"x": "0.in.0", "decay": "0.out.0", "beta": "0.out.1"}
    gates = replace(rule("gates", ["gdn_gates"]), kernels=(Kernel("k", "gates", args),))
    rules = rule_set(gates, *others)
    situation = Situation("decode", 1, every_kernel(rules), select=Select.all())
    if left_out is None:
        assert fuse(made, rules, situation).groups
        return
    with pytest.raises(Uncovered, match="it does not take the node's tensor a_log"):
        fuse(made, rules, situation)


def test_an_op_without_a_rule_is_named_with_the_rule_file() -> None:
    made = circuit_of(TINY["qwen3_5_text"])
    ops = {node.op for node in made.nodes} - {"gdn_gates", "l2_norm"}
    rules = rule_set(*(rule(op, [op]) for op in ops))
    situation = Situation("decode", 1, every_kernel(rules), select=Select.all())
    with pytest.raises(Uncovered, match=r"no rule of toy\.toml takes .* \(gdn_gates\)") as caught:
        fuse(made, rules, situation)
    assert str(caught.value).endswith("Other ops with untaken nodes: l2_norm")
    assert caught.value.ops == ("gdn_gates", "l2_norm")
