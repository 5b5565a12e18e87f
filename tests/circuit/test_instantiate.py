"""Circuit TOML beyond the dense family: layouts, switches, drafts, states, experts."""

from __future__ import annotations

import pytest

from metpipe.circuit import (
    BadCircuit,
    Circuit,
    Precision,
    PrecisionRow,
    node_weight_shapes,
)
from tests.circuit.hybrid_toml import KINDS, made


def blocks(circuit: Circuit) -> list[str]:
    return [block.prefix for block in circuit.blocks]


def test_blocks_follow_layout_prefix_and_draft() -> None:
    assert blocks(made(kinds=KINDS[:1] + KINDS[1:], dense_layers=1)) == [
        "embed", "l0.mixer", "l0.ffn", "l1.moe", "l2.mixer", "l2.moe", "l3.moe", "head",
        "draft.mtp_in", "draft.ffn", "draft.mtp_out",
    ]  # fmt: skip


def test_a_switch_replaces_the_blocks_of_a_kind() -> None:
    assert "l1.ffn" in blocks(made(gate=1))
    assert "l1.moe" in blocks(made(gate=0))


def test_without_the_switch_there_is_no_draft() -> None:
    circuit = made(mtp=0)
    assert {node.section for node in circuit.nodes} == {"main"}


def test_a_draft_reads_the_last_stream_with_modules_of_its_own() -> None:
    circuit = made()
    fc = next(node for node in circuit.nodes if node.id == "draft.mtp_in.fc")
    down = next(node for node in circuit.nodes if node.id == "draft.ffn.down")
    assert fc.inputs == ("l3.moe.y",)
    assert (fc.section, fc.layer, fc.binding) == ("draft", None, ("mtp.fc",))
    assert down.binding == ("mtp.layers.0.mlp.down_proj",)


def test_both_sections_may_bind_the_same_buffer() -> None:
    found = [edge.id for edge in made().edges.values() if edge.buffer == "logits"]
    assert found == ["head.logits", "draft.mtp_out.logits"]


def test_a_layer_kind_that_the_prefix_lacks_is_refused() -> None:
    with pytest.raises(BadCircuit, match="layer 1 is full_attention, and that kind has no blocks"):
        made(dense_layers=2)


def test_an_interval_is_held_against_the_layer_kinds() -> None:
    with pytest.raises(BadCircuit, match="layer 0 is full_attention, and with period 2"):
        made(kinds=("full_attention", "full_attention"))


def test_an_absent_node_is_the_identity() -> None:
    circuit = made(gate=1, dense_layers=0)
    out = next(node for node in circuit.nodes if node.id == "l0.mixer.out")
    assert out.inputs == ("l0.mixer.c",)
    present = made(gate=0, dense_layers=0)
    out = next(node for node in present.nodes if node.id == "l0.mixer.out")
    assert out.inputs == ("l0.mixer.cn",)


def test_params_are_filled_and_replaced_by_switches() -> None:
    assert next(n for n in made().nodes if n.local == "norm").params["scope"] == "head"
    assert next(n for n in made(mtp=0).nodes if n.local == "norm").params["scope"] == "layer"


def test_states_know_their_size_and_what_they_copy() -> None:
    states = made().states
    assert list(states) == ["l0.mixer.h", "l0.mixer.prefix_h", "l2.mixer.h", "l2.mixer.prefix_h"]
    live = states["l2.mixer.h"]
    assert (live.local, live.kind, live.elements) == ("mixer.h", "recurrent", 32)
    assert (live.format, live.verify) == ("{ssm_h_storage}", "h_steps")
    assert states["l2.mixer.prefix_h"].copies == "l2.mixer.h"


def test_modules_of_unequal_height_are_stated() -> None:
    circuit = made()
    node = next(node for node in circuit.nodes if node.id == "l0.mixer.qkvz")
    assert node_weight_shapes(circuit, node) == (
        ("model.layers.0.in_proj_qkv.weight", (24, 8)),
        ("model.layers.0.in_proj_z.weight", (8, 8)),
    )


def test_small_tensors_are_named_whole() -> None:
    circuit = made()
    node = next(node for node in circuit.nodes if node.id == "l2.mixer.conv")
    assert node_weight_shapes(circuit, node) == (("model.layers.2.conv1d.weight", (8, 4)),)


def test_experts_are_listed_one_by_one() -> None:
    circuit = made()
    node = next(node for node in circuit.nodes if node.id == "l1.moe.up")
    assert node_weight_shapes(circuit, node) == tuple(
        (f"model.layers.1.mlp.experts.{expert}.up_proj.weight", (8, 8)) for expert in range(3)
    )


def test_a_bias_that_is_always_there() -> None:
    circuit = made()
    node = next(node for node in circuit.nodes if node.id == "l0.ffn.down")
    assert node_weight_shapes(circuit, node)[1] == ("model.layers.0.mlp.down_proj.bias", (8,))


def test_an_unquantised_weight_stays_bf16() -> None:
    every = Precision("all", (PrecisionRow("*", "nvfp4/g16"),))
    formats = {node.id: node.weight_format for node in made(precision=every).nodes}
    assert formats["l0.mixer.qkvz"] == "nvfp4/g16"
    assert formats["l0.mixer.out"] == "bf16"
