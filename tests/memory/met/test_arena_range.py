"""Families with parts that no formula of the arena speaks of: the arena is a range."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from metpipe.circuit import Circuit, Node, circuit_from_config, node_weight_shapes
from metpipe.memory import evaluate
from metpipe.memory.met.arena_range import arena_range, find_gaps, gaps_as
from metpipe.memory.met.count import arena_sizes
from metpipe.memory.met.legacy_arena import arena_bytes, two_phase_bytes
from metpipe.memory.met.shape import shape_of
from metpipe.memory.stored import stored_bytes
from metpipe.resources import kernels_dir

from .points import circuit_of, point_of

FORMULATED = (
    "qwen3_8_27b_nvfp4",
    "qwen3_6_35b_a3b_fp8",
    "qwen3_5_122b_a10b_nvfp4",
    "nemotron_3_nano_30b_a3b_nvfp4",
    "nemotron_3_super_120b_a12b_nvfp4",
    "qwen3_8b",
    "llama_3_1_8b",
    "gpt_oss_20b",
    "minimax_m2_7_nvfp4",
)
GAPS = {
    "gemma_4_31b_it_nvfp4": ("attention of several widths",),
    "gemma_4_26b_a4b": ("attention of several widths",),
    "deepseek_v4_flash": (
        "compressed attention", "hyper-connections", "an index of keys", "pooled keys"
    ),
    "glm_5_3_flash": (
        "hyper-connections", "an index of keys", "pooled keys", "latent attention",
        "attention of several widths",
    ),
}  # fmt: skip
SERVES = {
    "few": {"max_seq_len": 512, "max_prefill_tokens": 64, "max_batch_size": 2},
    "short": {"max_seq_len": 1024, "max_prefill_tokens": 64, "max_batch_size": 128},
    "plain": {},
    "long": {"max_seq_len": 262144},
    "wide": {"max_seq_len": 32768, "max_prefill_tokens": 32768, "max_batch_size": 128},
}


@pytest.mark.parametrize("device", ["gb10", "h100-sxm"])
@pytest.mark.parametrize("serve", SERVES.values(), ids=SERVES)
@pytest.mark.parametrize("choice", FORMULATED)
def test_the_range_holds_every_arena_that_has_a_formula(choice, serve, device):
    """The bound is only worth something if it holds where the truth is known."""
    point, circuit = point_of(choice, serve, device=device, number=3), circuit_of(choice)
    shape, sizes = shape_of(circuit), arena_sizes(point)
    assert find_gaps(circuit, shape) is None
    low, high = arena_range(shape, gaps_as(circuit, shape, ("a test",)), sizes)
    known = arena_bytes(shape, sizes) + two_phase_bytes(shape, sizes.tokens, sizes.max_seq_len)
    assert low <= known <= high < 8 * known


@pytest.mark.parametrize("choice", GAPS)
def test_a_family_with_gaps_is_planned_and_its_arena_is_a_range(choice):
    point = point_of(choice, {}, (1000, 24, 4))
    report = evaluate(point)
    arena = report.term("arena")
    assert 0 < arena.low < arena.high
    assert {term.status for term in report.terms if term.id != "driver"} == {"uncalibrated"}
    assert point.met is not None
    assert point.met.model.gaps is not None
    assert point.met.model.gaps.what == GAPS[choice]
    (said,) = [note for note in report.notes if note.startswith("no formula of met's arena")]
    assert all(part in said for part in GAPS[choice])
    counted = sum(node.stored for node in report.counts.nodes)
    assert report.term("weights").low == counted == pytest.approx(weights_of(choice), rel=4e-3)
    # 65 blocks of 16 for each of four sequences, and a dummy
    blocks = [state for state in report.counts.states if state.holding == "blocks"]
    assert {state.units for state in blocks} == {(4 * 65 + 1) * 16}
    assert report.term("kv").low == sum(state.bytes for state in blocks)


def weights_of(choice: str) -> int:
    """Every bound tensor in its declared format; met counts matrices and the table alone."""
    return sum(stored_bytes(circuit_of(choice), node) for node in once(circuit_of(choice)))


def once(circuit: Circuit) -> Iterator[Node]:
    """Nodes but those whose tensors an earlier one reads too."""
    bound: set[tuple[str, ...]] = set()
    for node in circuit.nodes:
        names = tuple(name for name, _ in node_weight_shapes(circuit, node))
        if names not in bound:
            yield node
        bound.add(names)


def test_a_ring_of_keys_is_no_state_space_layer():
    """DeepSeek V4 has no decode ring, and its prefix cache keeps no recurrent state."""
    report = evaluate(point_of("deepseek_v4_flash", {"enable_prefix_caching": True}))
    assert report.term("snapshots").low == 0
    assert report.term("states").low > 0


def test_latent_attention_is_planned():
    """Mistral 4, of which no published choice is shipped."""
    path = Path(__file__).parents[2] / "circuit" / "data" / "family_configs.json"
    config = json.loads(path.read_text())["mistral4"]
    circuit = circuit_from_config(config, kernels_dir())
    shape = shape_of(circuit)
    gaps = find_gaps(circuit, shape)
    assert gaps is not None
    assert gaps.what == ("latent attention",)
    low, high = arena_range(shape, gaps, arena_sizes(point_of("qwen3_8b", {})))
    assert 0 < low < high


@pytest.mark.parametrize(
    ("choice", "arch"), [("minimax_m2_7_nvfp4", "gqa_moe"), ("qwen3_8b", None)]
)
def test_copies_that_no_rule_speaks_of_are_a_range(choice, arch):
    report = evaluate(point_of(choice, {}))
    copies = report.term("copies")
    said = [note for note in report.notes if "its copies are a range" in note]
    assert [arch in note for note in said] == ([True] if arch else [])
    assert copies.low == 0
    assert (copies.high > 0) == (arch is not None)


def test_the_most_that_may_be_copied_is_what_another_family_copies_of_such_weights():
    """Experts in NVFP4 have a twin in two families; that of the whole is as large as they are."""
    report = evaluate(point_of("minimax_m2_7_nvfp4", {}))
    experts = sum(
        node.stored for node in report.counts.nodes if node.op in ("expert_gate_up", "expert_down")
    )
    assert experts <= report.term("copies").high <= 1.05 * report.term("weights").low
