"""A rank's circuit: widths by hand, what stays whole, where layers are cut, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metpipe.circuit import (
    Ranks,
    Select,
    Situation,
    fuse,
    layers_of,
    layout,
    node_weight_shapes,
    read_rules,
    shard,
    verify,
    weight_matrix,
)
from metpipe.circuit.vocabulary import OPS
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

from . import hybrids
from .families import circuit as dense
from .planned_families import TINY
from .planned_families import circuit_of as family
from .toy import Toy, patiently


def hybrid(name):
    return hybrids.circuit_of(hybrids.published(name))


def matrix(circuit, node_id):
    (node,) = [node for node in circuit.nodes if node.id == node_id]
    return weight_matrix(circuit, node)


def test_heads_and_widths_of_the_dense_hybrid_by_hand():
    part = shard(hybrid("27B"), Ranks(tensor=4), 3)
    # 24 query heads, 4 of keys, each 256 wide; the query has a gate as wide beside it
    assert matrix(part, "l3.attn.q") == (2 * 6 * 256, 5120)
    assert matrix(part, "l3.attn.k") == (256, 5120)
    assert matrix(part, "l3.attn.o") == (5120, 6 * 256)
    # 16 key heads and 48 value heads of 128: query, key; value, z
    assert matrix(part, "l0.gdn.qkvz") == (2 * 4 * 128 + 2 * 12 * 128, 5120)
    assert matrix(part, "l0.gdn.ba") == (2 * 12, 5120)
    assert matrix(part, "l0.gdn.out") == (5120, 12 * 128)
    assert matrix(part, "l0.dense_ffn.gate_up") == (2 * 4352, 5120)
    assert matrix(part, "head.lm_head") == (62_080, 5120)
    # No head and no width: the draft's join stands whole.
    assert matrix(part, "draft.mtp_in.fc") == (5120, 2 * 5120)
    assert part.states["l0.gdn.h"].shape == (12, 128, 128)
    assert part.states["l0.gdn.conv"].shape == (2560, 4)
    assert part.states["l3.attn.k"].elements == 256


def test_modules_tensors_and_params_follow():
    part = shard(hybrid("27B"), Ranks(tensor=4), 0)
    nodes = {node.id: node for node in part.nodes}
    assert nodes["l0.gdn.qkvz"].binding_rows == (2560, 1536)
    assert {tensor.local: tensor.shape for tensor in nodes["l0.gdn.gates"].tensors} == {
        "a_log": (12,),
        "dt_bias": (12,),
    }
    assert nodes["l0.gdn.conv"].tensors[0].shape == (2560, 1, 4)
    assert (nodes["l0.gdn.recur"].params["k_heads"], part.dims["conv_dim"]) == ("4", 2560)


def test_a_key_head_stands_on_several_ranks_when_there_are_too_few():
    part = shard(hybrid("27B"), Ranks(tensor=8), 0)
    assert matrix(part, "l3.attn.q") == (2 * 3 * 256, 5120)
    assert matrix(part, "l3.attn.k") == (256, 5120)
    assert part.states["l3.attn.v"].elements == 256


def test_experts_are_split_and_scored_everywhere():
    whole = hybrid("35B-A3B")
    part = shard(whole, Ranks(tensor=2, expert=4), 5)
    assert part.dims["experts"] == 64
    assert matrix(part, "l0.moe_ffn.router") == (256, 2048)
    assert matrix(part, "l0.moe_ffn.experts_gate_up") == (2 * 256, 2048)
    assert matrix(part, "l0.moe_ffn.shared_down") == (2048, 256)
    (node,) = [node for node in part.nodes if node.id == "l0.moe_ffn.experts_down"]
    assert len(node_weight_shapes(part, node)) == 64
    verify(part)


def test_a_correction_of_the_scores_stays_whole():
    whole = family(TINY["nemotron_h"])
    part = shard(whole, Ranks(expert=5), 1)

    def corrections(circuit):
        return [node.tensors for node in circuit.nodes if node.op == "top_k"]

    assert corrections(part) == corrections(whole) != []
    assert (whole.dims["experts"], part.dims["experts"]) == (5, 1)


def test_stages_hold_their_layers_and_the_ends_of_the_model():
    whole = hybrid("27B")
    first, last = (shard(whole, Ranks(pipeline=2), stage) for stage in (0, 1))
    assert {node.layer for node in first.nodes} == {None, *range(32)}
    assert {node.layer for node in last.nodes} == {None, *range(32, 64)}
    assert first.nodes[0].op == "embed"
    assert {node.block for node in first.nodes if node.layer is None} == {"embed"}
    ends = {node.block for node in last.nodes if node.layer is None}
    assert {"head", "mtp_in", "mtp_out"} <= ends
    assert not set(first.states) & set(last.states)
    assert {**first.states, **last.states} == whole.states
    assert (first.dims["layers"], len(last.layer_kinds)) == (32, 32)


def test_a_stream_leaves_one_stage_and_enters_the_next():
    whole = dense("qwen3", num_hidden_layers=3)
    first, last = (shard(whole, Ranks(pipeline=2), stage) for stage in (0, 1))
    leaving = [edge for edge in first.edges.values() if edge.is_output]
    entering = [edge for edge in last.edges.values() if edge.producer is None]
    assert [edge.id for edge in leaving] == [edge.id for edge in entering] == ["l1.dense_ffn.y"]
    readers = [last.nodes[reader].id for reader in entering[0].consumers]
    assert readers == ["l2.attn.input_norm", "l2.attn.add"]
    assert not entering[0].is_output


@pytest.mark.parametrize(
    ("layers", "stages", "sizes"),
    [(8, 4, [2, 2, 2, 2]), (5, 2, [3, 2]), (7, 4, [2, 2, 2, 1]), (6, 4, [1, 2, 2, 1])],
)
def test_layers_left_over_go_before_the_last_stage(layers, stages, sizes):
    whole = dense("llama", num_hidden_layers=layers)
    parts = [layers_of(whole, Ranks(pipeline=stages), stage) for stage in range(stages)]
    assert [len(part) for part in parts] == sizes
    assert [layer for part in parts for layer in part] == list(range(layers))


def test_a_stage_is_planned_with_its_stream_from_outside():
    rules = read_rules(kernels_dir() / "cpu")
    part = shard(dense("qwen3", num_hidden_layers=2), Ranks(tensor=2, pipeline=2), 2)
    kernels = frozenset(name for rule in rules.rules.values() for name in rule.kernel_names)
    plan = fuse(part, rules, Situation("prefill", 7, kernels, select=Select.reference()))
    placed = layout(plan, 7).places
    assert placed["l0.dense_ffn.y"].bytes == 7 * 64 * 2
    assert placed["l1.attn.q"].bytes == 7 * 2 * 128 * 2


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (
            Ranks(tensor=3),
            r"serve\.tensor_parallel_size=3: does not divide the model's q_heads=16; set it to one "
            r"of 1, 2, 4, 8, 16$",
        ),
        (
            Ranks(expert=3),
            r"serve\.expert_parallel_size=3: does not divide the model's experts=256; set it to "
            r"one of 1, 2, 4, ",
        ),
        (Ranks(pipeline=41), r"serve\.pipeline_parallel_size=41: the model has 40 layers"),
    ],
)
def test_what_does_not_divide_is_named(ranks, message):
    with pytest.raises(ConfigError, match=message):
        shard(hybrid("35B-A3B"), ranks, 0)


def test_a_key_head_is_not_cut():
    whole = dense("llama", num_attention_heads=24, num_key_value_heads=4, vocab_size=600)
    with pytest.raises(ConfigError, match=r"size=6: does not divide the model's kv_heads=4"):
        shard(whole, Ranks(tensor=6), 0)


def test_no_experts_to_split():
    with pytest.raises(ConfigError, match=r"expert_parallel_size=2: the model has no experts"):
        shard(hybrid("27B"), Ranks(expert=2), 0)


def test_a_share_that_cuts_a_group_of_its_format_is_refused():
    whole = dense("llama", intermediate_size=96, quantization_config=NVFP4)
    shard(whole, Ranks(tensor=2), 0)  # 48 columns of down: three groups of 16
    with pytest.raises(ConfigError, match=r"share of l0\.attn\.o is 64 x 8.*multiple of the 16"):
        shard(
            dense("llama", head_dim=8, num_key_value_heads=4, quantization_config=NVFP4),
            Ranks(tensor=4),
            0,
        )


NVFP4 = {
    "quant_method": "compressed-tensors",
    "format": "nvfp4-pack-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                "symmetric": True, "dynamic": False,
            },
        }
    },
    "ignore": ["lm_head"],
}  # fmt: skip


def test_a_circuit_put_together_by_hand_is_not_shared_out():
    made = Toy().add("a", "embed", writes="x", weight="bf16").circuit()
    with pytest.raises(ValueError, match="instantiated"):
        shard(made, Ranks(tensor=2), 0)
    with pytest.raises(ValueError, match="rank 4 of 4"):
        shard(made, Ranks(pipeline=2, expert=2), 4)


def test_one_rank_is_the_whole_model():
    whole = dense("qwen3")
    assert shard(whole, Ranks(), 0) == whole


def elements_of(circuit):
    return sum(
        out * k * (circuit.dims["experts"] if OPS[node.op].per_expert else 1)
        for node in circuit.nodes
        if OPS[node.op].weight == "matrix"
        for out, k in [weight_matrix(circuit, node)]
    )


@patiently
@given(
    st.sampled_from([1, 2, 3, 4]),
    st.sampled_from([1, 2, 4, 8]),
    st.integers(1, 7),
    st.sampled_from(["qwen3", "llama", "qwen2"]),
)
def test_any_dense_model_is_shared_out_whole(kv_heads, tensor, pipeline, family_name):
    """Each layer and state once; no matrix lost; each rank's circuit legal."""
    whole = dense(
        family_name,
        num_hidden_layers=7,
        num_attention_heads=8 * kv_heads,
        num_key_value_heads=kv_heads,
        head_dim=8,
    )
    ranks = Ranks(tensor, pipeline)
    if kv_heads % tensor and tensor % kv_heads:
        with pytest.raises(ConfigError, match="kv_heads"):
            shard(whole, ranks, 0)
        return
    parts = [shard(whole, ranks, rank) for rank in range(0, ranks.count, ranks.per_stage)]
    for part in parts:
        verify(part)
    assert [name for part in parts for name in part.states] == list(whole.states)
    replicas = max(1, tensor // kv_heads)
    for part in parts:
        for name, state in part.states.items():
            assert state.elements * tensor == whole.states[name].elements * replicas
    assert sum(map(elements_of, parts)) * tensor >= elements_of(whole)


@pytest.mark.parametrize("name", TINY)
def test_every_family_is_cut_and_its_experts_split(name):
    whole = family(TINY[name])
    ranks = Ranks(pipeline=2, expert=max(1, whole.dims.get("experts", 1)))
    parts = [shard(whole, ranks, rank) for rank in range(ranks.count)]
    for part in parts:
        verify(part)
    assert parts[0] == parts[ranks.per_stage - 1]
    assert sum(len(part.layer_kinds) for part in parts) == ranks.expert * len(whole.layer_kinds)
