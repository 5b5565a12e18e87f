"""Which fusions a hybrid's plan has: by mode, and what is left op by op."""

from __future__ import annotations

from collections import Counter

import pytest

from metpipe.circuit import Plan, Select, Situation, fuse, parse_fusions
from metpipe.engine.microtest import AWKWARD
from metpipe.engine.opening import circuit_of
from tests.kernels.cpu.conftest import FOLDER

RULES = parse_fusions((FOLDER / "FUSIONS.toml").read_text(), "FUSIONS.toml")
LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
}
CIRCUITS = {
    name: circuit_of({**AWKWARD[name], **LAYERS}, name) for name in ("recurrent", "experts")
}
MIXERS = {"linear_gates": 3, "conv_l2_norm": 3, "recurrence_norm": 3}
ATTENTION = {"qkv": 1, "norm_rope_write": 1}
EXPERTS = {"router_top_k": 4, "expert_gate_up_silu": 4, "shared_down_blend": 4}
MAIN = {**MIXERS, **ATTENTION, "gate_up_silu": 4, "add_rms_norm": 7}


def plan_of(cpu, name: str, mode: str, rows: int) -> Plan:
    situation = Situation(
        mode=mode,
        rows=rows,
        kernels=frozenset(cpu.functions),
        capabilities=cpu.capabilities,
        settings=cpu.settings,
        select=Select.all(),
    )
    return fuse(CIRCUITS[name], RULES, situation)


def fused(plan: Plan) -> dict[str, int]:
    """Groups of each rule over several ops."""
    return dict(Counter(g.rule.id for g in plan.groups if len(g.rule.pattern) > 1))


@pytest.mark.parametrize(
    ("mode", "rows"), [("decode", 1), ("multi_seq", 4), ("verify", 3), ("verify_batch", 6)]
)
def test_every_chain_of_a_step_is_fused(cpu, mode, rows):
    last = {"add_final_norm": 1}
    assert fused(plan_of(cpu, "recurrent", mode, rows)) == MAIN | last
    assert fused(plan_of(cpu, "experts", mode, rows)) == MAIN | EXPERTS | last


def test_a_prefill_s_last_norm_reads_one_row(cpu):
    assert fused(plan_of(cpu, "recurrent", "prefill", 9)) == MAIN | {"linear_add": 1}
    assert fused(plan_of(cpu, "experts", "prefill", 9)) == MAIN | EXPERTS


def test_a_draft_step_has_the_attention_s_and_the_feed_forward_s(cpu):
    one = {**ATTENTION, "gate_up_silu": 1, "add_rms_norm": 1, "add_final_norm": 1}
    assert fused(plan_of(cpu, "recurrent", "draft", 2)) == one
    assert fused(plan_of(cpu, "experts", "draft", 2)) == one | dict.fromkeys(EXPERTS, 1)


def test_a_layer_s_last_add_joins_the_next_layer_s_norm(cpu):
    plan = plan_of(cpu, "experts", "decode", 1)
    pairs = {
        tuple(plan.circuit.nodes[index].id for index in group.nodes)
        for group in plan.groups
        if group.rule.id == "add_rms_norm"
    }
    assert ("l0.moe_ffn.add", "l1.gdn.input_norm") in pairs
    assert ("l2.moe_ffn.add", "l3.attn.input_norm") in pairs


def test_what_is_left_op_by_op(cpu):
    """Linears between two fusions, the attention and its two sides, both ends of the model."""
    plan = plan_of(cpu, "experts", "decode", 1)
    alone = Counter(g.rule.id for g in plan.groups if len(g.rule.pattern) == 1)
    assert alone == {
        "embed": 1, "rms_norm": 1, "linear": 7, "split_heads": 1, "paged_attention": 1,
        "sigmoid_gate_mul": 1, "lm_head": 1, "argmax": 1,
    }  # fmt: skip
