"""Circuit TOML beyond the dense family: layouts, switches, drafts, states, experts, refusals."""

from __future__ import annotations

import pytest

from metpipe.circuit import (
    BF16,
    BadCircuit,
    Circuit,
    Precision,
    PrecisionRow,
    Shape,
    instantiate,
    node_weight_shapes,
    verify,
)
from metpipe.circuit.circuit_toml import parse_circuit

HYBRID = """
schema = 1
arch = "hybrid"
description = "a recurrent mixer, every second layer attention; a draft head"
layer_module = "model.layers.{i}"
include = ["parts"]
dims = ["hidden", "vocab", "heads", "head_dim", "experts", "top_k", "dense_layers", "mtp", "gate"]
prologue = ["embed"]
epilogue = ["head"]
draft = ["mtp_in", "ffn@mtp.layers.0", "mtp_out"]
draft_module = "mtp"
draft_when = "mtp"

[layout]
kind = "interval"
period = 2
blocks.linear_attention = ["mixer", "moe"]
blocks.full_attention = ["moe"]
when.gate.full_attention = ["ffn"]

[layout.prefix]
count = "dense_layers"
blocks.linear_attention = ["mixer", "ffn"]

[block.embed]
stream_out = "x"
[[block.embed.node]]
id = "embed"
op = "embed"
in = []
out = [{ edge = "x", format = "bf16", shape = "n x hidden" }]
binding = ["model.embed_tokens"]

[block.head]
stream_in = "x"
outputs = [{ edge = "logits", buffer = "logits" }]
[[block.head.node]]
id = "lm_head"
op = "lm_head"
in = ["x"]
out = [{ edge = "logits", format = "bf16", shape = "s x vocab" }]
binding = ["lm_head"]

[block.mtp_in]
stream_in = "h"
stream_out = "y"
[[block.mtp_in.node]]
id = "fc"
op = "linear"
role = "mtp_fc"
in = ["h"]
out = [{ edge = "y", format = "bf16", shape = "n x hidden" }]
binding = ["{L}.fc"]

[block.mtp_out]
stream_in = "h"
outputs = [{ edge = "logits", buffer = "logits" }, "seen"]
[[block.mtp_out.node]]
id = "seen"
op = "copy"
in = ["h"]
out = [{ edge = "seen", format = "bf16", shape = "n x hidden" }]
[[block.mtp_out.node]]
id = "lm_head"
op = "lm_head"
in = ["h"]
out = [{ edge = "logits", format = "bf16", shape = "n x vocab" }]
binding = ["{L}.lm_head"]
"""

PARTS = """
schema = 1
description = "mixer, experts, feed-forward"

[block.mixer]
stream_in = "x"
stream_out = "y"
[[block.mixer.state]]
id = "h"
kind = "recurrent"
lifetime = "sequence"
format = "{ssm_h_storage}"
shape = "heads x head_dim x head_dim"
verify = "h_steps"
[[block.mixer.state]]
id = "prefix_h"
kind = "prefix_snapshot"
lifetime = "snapshot"
format = "f32"
shape = "heads x head_dim x head_dim"
of = "h"
[[block.mixer.node]]
id = "qkvz"
op = "linear"
role = "qkvz"
in = ["x"]
out = [{ edge = "qkvz", format = "bf16", shape = "n x 4*heads*head_dim" }]
binding = ["{L}.in_proj_qkv", "{L}.in_proj_z"]
binding_rows = ["3*heads*head_dim", "heads*head_dim"]
[[block.mixer.node]]
id = "conv"
op = "conv1d_update"
in = ["qkvz"]
out = [{ edge = "c", format = "f32", shape = "n x heads*head_dim" }]
tensor = [{ id = "taps", tensor = "{L}.conv1d.weight", shape = "heads*head_dim x 4" }]
state = { h = "update" }
[[block.mixer.node]]
id = "norm"
op = "qk_norm"
when = "!gate"
in = ["c"]
out = [{ edge = "cn", format = "f32", shape = "n x heads*head_dim" }]
params = { weight_form = "none", scope = "{scope}" }
params_when = { mtp = { scope = "head" } }
[[block.mixer.node]]
id = "out"
op = "linear"
role = "gdn_out"
in = ["cn"]
out = [{ edge = "o", format = "bf16", shape = "n x hidden" }]
binding = ["{L}.out_proj"]
unquantized = true
[[block.mixer.node]]
id = "add"
op = "residual_add"
in = ["x", "o"]
out = [{ edge = "y", format = "bf16", shape = "n x hidden" }]

[block.ffn]
stream_in = "x"
stream_out = "y"
[[block.ffn.node]]
id = "down"
op = "linear"
role = "down"
in = ["x"]
out = [{ edge = "y", format = "bf16", shape = "n x hidden" }]
binding = ["{L}.mlp"]
binding_when = { "!gate" = ["{L}.mlp.down_proj"] }
bias = true

[block.moe]
stream_in = "x"
stream_out = "y"
[[block.moe.node]]
id = "router"
op = "router"
in = ["x"]
out = [{ edge = "r", format = "bf16", shape = "n x experts" }]
binding = ["{L}.mlp.gate"]
[[block.moe.node]]
id = "top_k"
op = "top_k"
in = ["r"]
out = [
  { edge = "w", format = "f32", shape = "n x top_k" },
  { edge = "ids", format = "i32", shape = "n x top_k" },
]
[[block.moe.node]]
id = "up"
op = "expert_gate_up"
in = ["x", "ids"]
out = [{ edge = "u", format = "bf16", shape = "n*top_k x hidden" }]
binding = ["{L}.mlp.experts.*.up_proj"]
[[block.moe.node]]
id = "blend"
op = "blend"
in = ["u", "w"]
out = [{ edge = "y", format = "bf16", shape = "n x hidden" }]
"""

DIMS = {
    "hidden": 8, "vocab": 32, "heads": 2, "head_dim": 4, "experts": 3, "top_k": 2,
    "dense_layers": 1, "mtp": 1, "gate": 0,
}  # fmt: skip
KINDS = ("linear_attention", "full_attention") * 2


def made(
    text: str = HYBRID,
    parts: str = PARTS,
    kinds: tuple[str, ...] = KINDS,
    precision: Precision = BF16,
    **dims: int,
) -> Circuit:
    description = parse_circuit(text, "hybrid.toml", {"parts": parts})
    shape = Shape(kinds, {**DIMS, **dims}, {"scope": "layer"})
    built = instantiate(description, shape, precision)
    verify(built)
    return built


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


def replaced(old: str, new: str, text: str = HYBRID) -> str:
    assert old in text, old
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (replaced("schema = 1", "schema = 2"), "schema 2 is not known"),
        (replaced("prologue", "prolog"), "unknown key 'prolog'"),
        (replaced('arch = "hybrid"\n', ""), "'arch' is missing"),
        (replaced('include = ["parts"]', 'include = ["bits"]'), "no blocks/bits.toml"),
        (HYBRID + "[block.ffn]", r"block ffn: the block is defined in blocks/parts\.toml"),
        (HYBRID + "[block.spare]", "the block spare is used nowhere"),
        (replaced('prologue = ["embed"]', 'prologue = ["embed", "no"]'), "no block is named 'no'"),
        (replaced('kind = "interval"', 'kind = "random"'), "'random' is not one of"),
        (replaced("period = 2\n", ""), "'period' is missing"),
        (replaced('"n x hidden"', '"n, hidden"'), "must be written `rows x dim`"),
        (replaced('"n x hidden"', '"top_k x hidden"'), "mention neither n"),
        (replaced('"n x hidden"', '"n x width"'), "names the dimension 'width'"),
        (replaced('"n x hidden"', '"n x 0*hidden"'), "holds a zero"),
        (replaced('op = "embed"', 'op = "embedding"'), "unknown op 'embedding'"),
        (replaced("in = []", "inputs = []"), "node embed: .*'in' is missing"),
        (replaced('draft_module = "mtp"\n', ""), "the draft block 'mtp_in' has no module"),
        (replaced('in = ["h"]', 'in = ["x"]'), "the edge 'x' is written by no earlier node"),
        (replaced('draft_when = "mtp"', 'draft_when = "nextn"'), "'nextn' names no dimension"),
        (replaced('count = "dense_layers"', 'count = "first_k"'), "count names 'first_k'"),
        (replaced('binding = ["lm_head"]', 'binding = ["{L}.lm_head"]'), "needs a layer's module"),
        (replaced('"hidden", "vocab"', '"hidden", "vocab", "inter"'), "lacks the dim 'inter'"),
        (replaced('buffer = "logits" }]', 'buffer = "logits" }, 3]'), "holds 3"),
        (replaced('stream_out = "x"', 'stream_out = "z"'), "the edge 'z'"),
        (replaced("blocks.full_attention =", "blocks.full ="), "no layer kind 'full'"),
    ],
)  # fmt: skip
def test_an_architecture_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=message):
        made(text)


def parts(old: str, new: str) -> str:
    return replaced(old, new, PARTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (parts('description = "mixer, experts, feed-forward"', ""), "'description' is missing"),
        (parts('in = ["c"]', 'in = ["c", "x"]'), "must read one edge and write one"),
        (parts('{ edge = "cn", format = "f32"', '{ edge = "cn", format = "bf16"'), "left out"),
        (parts('{ edge = "cn"', '{ edge = "c"'), "the edge 'c' is written twice"),
        (parts("binding_rows = [", "binding_rows = [\"hidden\", "), "give 40 rows|zip"),
        (parts('"heads x head_dim x head_dim"', '"heads x depth"'), "'depth'"),
        (parts('id = "prefix_h"', 'id = "h"'), "state h: it is declared twice"),
        (parts('state = { h = "update" }', 'state = { s = "update" }'), "no state 's'"),
        (parts('state = { h = "update" }', 'state = { h = "erase" }'), "may not erase"),
        (parts('verify = "h_steps"\n', ""), "recurrent states"),
        (parts('of = "h"', 'of = "conv"'), "copies l0.mixer.conv"),
        (parts('id = "top_k"', 'id = "router"'), "2 nodes are named l1.moe.router"),
        (parts('in = ["u", "w"]', 'in = ["u"]'), "reads 1 edges"),
        (parts('when = "!gate"', 'when = "!gates"'), "names no dimension"),
        (parts('tensor = [{ id = "taps"', 'tensor = [{ name = "taps"'), "'id' is missing"),
        (parts("bias = true", "bias = 3"), "bias must be a string"),
    ],
)  # fmt: skip
def test_a_library_is_read_strictly(text: str, message: str) -> None:
    with pytest.raises(BadCircuit, match=message):
        made(parts=text)


def test_a_param_that_nothing_fills_is_named() -> None:
    with pytest.raises(BadCircuit, match=r"node norm: the param '\{theta\}' names"):
        made(parts=parts('scope = "{scope}"', 'scope = "{theta}"'), mtp=0)


def test_modules_that_share_no_equal_rows_must_state_them() -> None:
    unstated = parts('binding_rows = ["3*heads*head_dim", "heads*head_dim"]\n', "")
    made(parts=unstated)  # 32 rows in equal halves
    with pytest.raises(BadCircuit, match="state binding_rows"):
        made(parts=unstated.replace("n x 4*heads*head_dim", "n x 3*heads + 3"))


def test_a_node_may_read_an_edge_twice() -> None:
    circuit = made(parts=parts('in = ["x", "o"]', 'in = ["o", "o"]'))
    assert len(circuit.edges["l0.mixer.o"].consumers) == 1


def test_a_head_needs_a_stream() -> None:
    with pytest.raises(BadCircuit, match="no earlier block wrote a stream"):
        made(replaced('prologue = ["embed"]', 'prologue = ["head", "embed"]'))
