"""What the hybrids store and keep, against published sizes; parameters counted by hand."""

from __future__ import annotations

import pytest

from metpipe.circuit import Select, circuit_from_config, tensor_bytes, weight_matrix
from metpipe.circuit.vocabulary import OPS
from metpipe.memory import Planned
from metpipe.memory.formulas import element_bytes
from metpipe.resources import kernels_dir
from tests.circuit.hybrids import published

MIB = 1 << 20
NAMES = ("27B", "35B-A3B", "122B-A10B")


@pytest.fixture(scope="module")
def planned(cpu_set):
    return {
        name: Planned(circuit_from_config(published(name), kernels_dir()), cpu_set, Select.all())
        for name in NAMES
    }


@pytest.mark.parametrize(
    ("name", "layers", "h", "conv", "slot_mib"),
    [
        ("27B", 48, 3_145_728, 163_840, 151.5),
        ("35B-A3B", 30, 2_097_152, 131_072, 63.75),
        ("122B-A10B", 36, 4_194_304, 196_608, 150.75),
    ],
)
def test_recurrent_state(planned, name, layers, h, conv, slot_mib):
    groups = {group.local: group for group in planned[name].states if group.kind == "recurrent"}
    assert {len(group.states) for group in groups.values()} == {layers}
    assert groups["gdn.h"].elements * element_bytes("f32", "h") == h
    assert groups["gdn.conv"].elements * element_bytes("f32", "conv") == conv
    assert layers * (h + conv) == slot_mib * MIB


@pytest.mark.parametrize(
    ("name", "layers", "per_token", "block", "draft_block"),
    [
        ("27B", 16, 32_768, 1_048_576, 65_536),
        ("35B-A3B", 10, 10_240, 327_680, 32_768),
        ("122B-A10B", 12, 12_288, 393_216, 32_768),
    ],
)
def test_cache(planned, name, layers, per_token, block, draft_block):
    """Blocks of 16 tokens in bf16, K and V, all layers; the draft head has its own."""
    groups = [group for group in planned[name].states if group.kind == "paged_kv"]
    main = [group for group in groups if group.section == "main"]
    draft = [group for group in groups if group.section == "draft"]
    assert [len(group.states) for group in main] == [layers, layers]
    assert sum(len(group.states) * group.elements for group in main) == per_token
    assert 16 * 2 * per_token == block
    assert 16 * 2 * sum(len(group.states) * group.elements for group in draft) == draft_block


def matrices(circuit, *locals_, section="main"):
    """MiB in bf16 of the matrices of nodes with these local ids (none: all but the head)."""
    total = 0
    for node in circuit.nodes:
        is_asked = node.local in locals_ if locals_ else node.op != "lm_head"
        if node.section == section and is_asked and OPS[node.op].weight == "matrix":
            experts = circuit.dims["experts"] if OPS[node.op].per_expert else 1
            total += experts * tensor_bytes("bf16", *weight_matrix(circuit, node))
    return total / MIB


def test_parts_of_the_stored_weights(planned):
    """As published for checkpoints that keep these parts in bf16."""
    dense, moe, large = (planned[name].circuit for name in NAMES)
    assert matrices(dense, "ba") == 45
    assert matrices(dense, section="draft") == 810
    assert matrices(moe, "ba") == 7.5
    assert matrices(moe, "router") + matrices(moe, "router", section="draft") == 41
    assert matrices(moe, "fc", section="draft") == 16
    assert matrices(large, "qkvz") == 4320
    assert matrices(large, "out") == 1728
    assert matrices(large, "ba") == 27
    without_gate = matrices(large, section="draft") - 3072 * 2 / MIB
    assert without_gate == 4813.5


def test_all_weights_of_the_dense_hybrid(planned):
    hidden, inter, vocab = 5120, 17408, 248320
    ffn = 3 * inter * hidden + hidden
    gdn = (
        hidden + 16384 * hidden + 96 * hidden + 48 + 48 + 10240 * 4 + 128 + hidden * 6144
    )  # norm, qkvz, ba, A_log, dt_bias, conv, output norm, out
    attention = hidden + 12288 * hidden + 2 * 1024 * hidden + 2 * 256 + hidden * 6144
    draft = attention + ffn + 2 * hidden * hidden + 3 * hidden
    total = 2 * vocab * hidden + 48 * gdn + 16 * attention + 64 * ffn + hidden + draft
    assert planned["27B"].weights == 2 * total
    assert round(total / 1e9, 1) == 27.3


def test_all_weights_of_the_hybrid_with_experts(planned):
    """Three billion of them a token; embedding and head are read once by two sections."""
    hidden, vocab = 2048, 248320
    expert = 3 * 512 * hidden
    moe = hidden + 256 * hidden + 256 * expert + expert + hidden
    gdn = hidden + 12288 * hidden + 64 * hidden + 64 + 8192 * 4 + 128 + hidden * 4096
    attention = hidden + 8192 * hidden + 2 * 512 * hidden + 2 * 256 + hidden * 4096
    draft = attention + moe + 2 * hidden * hidden + 3 * hidden
    total = 2 * vocab * hidden + 30 * gdn + 10 * attention + 40 * moe + hidden + draft
    assert planned["35B-A3B"].weights == 2 * total
    assert round(total / 1e9, 1) == 35.5
