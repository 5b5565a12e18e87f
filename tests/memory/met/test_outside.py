"""Which tensors of a checkpoint are outside: those that no weight node binds."""

from __future__ import annotations

import pytest

from metpipe.memory.met.behaviour import stated_outside
from metpipe.memory.met.outside import outside_bytes

from .points import behaviours, circuit_of

LAYER = "model.language_model.layers.3"


@pytest.mark.parametrize(
    ("tensor", "inside"),
    [
        (f"{LAYER}.self_attn.q_proj.weight", True),
        (f"{LAYER}.self_attn.q_proj.weight_scale", True),
        (f"{LAYER}.self_attn.q_proj.inner.weight", True),
        (f"{LAYER}.self_attn.q_norm.weight", False),
        (f"{LAYER}.self_attn.q_proj_extra.weight", False),
        (f"{LAYER}.input_layernorm.weight", False),
        (f"{LAYER}.mlp.experts.7.up_proj.weight", True),
        (f"{LAYER}.mlp.experts.gate_up_proj", True),
        (f"{LAYER}.mlp.experts.7.up_proj.input_scale", True),
        (f"{LAYER}.mlp.gate.weight", True),
        ("model.language_model.layers.2.linear_attn.A_log", True),
        ("model.language_model.layers.2.linear_attn.norm.weight", False),
        ("model.language_model.layers.2.linear_attn.conv1d.weight", False),
        ("model.language_model.embed_tokens.weight", True),
        ("model.language_model.norm.weight", False),
        ("model.visual.blocks.0.attn.qkv.weight", False),
        ("mtp.fc.weight", True),
        ("mtp.norm.weight", False),
        ("lm_head.weight", True),
        ("lm_head", False),
    ],
)
def test_a_tensor_is_inside_where_a_binding_and_its_module_agree(tensor, inside):
    """A module that holds a binding is inside, so a tensor directly in `linear_attn` is."""
    circuit = circuit_of("qwen3_6_35b_a3b_fp8")
    assert outside_bytes(circuit, {tensor: 7}) == (0 if inside else 7)


def test_sizes_add():
    circuit = circuit_of("qwen3_6_35b_a3b_fp8")
    stored = {"model.visual.a.weight": 3, "model.visual.b.weight": 4, "lm_head.weight": 5}
    assert outside_bytes(circuit, stored) == 7


@pytest.mark.parametrize(
    ("checkpoint", "size"),
    [
        ("unsloth/Qwen3.8-27B-NVFP4", 926_794_208),
        ("Qwen/Qwen3.6-35B-A3B-FP8", 895_479_776),
        ("nvidia/Qwen3.6-35B-A3B-NVFP4", 895_479_776),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4", 1_886_464),
        ("somebody/else", None),
        (None, None),
    ],
)
def test_what_was_measured_on_published_files(checkpoint, size):
    assert stated_outside(behaviours(), checkpoint) == size
