"""A small hybrid as circuit TOML: a recurrent mixer, attention, experts, a draft head."""

from __future__ import annotations

from metpipe.circuit import BF16, Circuit, Precision, Shape, instantiate, verify
from metpipe.circuit.circuit_toml import parse_circuit

__all__ = ["DIMS", "HYBRID", "KINDS", "PARTS", "made", "replaced"]

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


def replaced(old: str, new: str, text: str = HYBRID) -> str:
    assert old in text, old
    return text.replace(old, new, 1)
