"""The legacy arena against boots and documented serves, and its parts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate
from metpipe.memory.met.arena_scratch import scratch_bytes
from metpipe.memory.met.count import arena_sizes
from metpipe.memory.met.legacy_arena import arena_buffers, arena_bytes, two_phase_bytes
from metpipe.memory.met.shape import shape_of

from .points import (
    MIB,
    RECIPE_27B,
    RECIPE_35B_NVFP4,
    RECIPE_122B,
    circuit_of,
    devices,
    point_of,
)

DENSE, MOE = "qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_nvfp4"


@pytest.mark.parametrize(
    ("choice", "serve", "arena", "two_phase"),
    [
        (DENSE, RECIPE_27B, 3720.020, 355.043),
        (MOE, RECIPE_35B_NVFP4, 2137.80, 258.252),
        ("qwen3_5_122b_a10b_nvfp4", RECIPE_122B, 3613.27, 452.055),
    ],
)
def test_documented_arenas(choice, serve, arena, two_phase):
    report = evaluate(point_of(choice, serve))
    assert report.term("arena").low / MIB == pytest.approx(arena, abs=0.006)
    assert report.term("two_phase").low / MIB == pytest.approx(two_phase, abs=0.0006)


def test_the_arena_does_not_move_with_the_load():
    arenas = {
        evaluate(point_of(DENSE, RECIPE_27B, load)).term("arena").low
        for load in ((1, 1, 1), (32767, 1, 1))
    }
    assert len(arenas) == 1


def test_newer_engines_keep_wider_experts():
    old = arena_sizes(point_of(MOE, RECIPE_35B_NVFP4, number=2))
    new = arena_sizes(point_of(MOE, RECIPE_35B_NVFP4, number=3))
    shape = shape_of(circuit_of(MOE))
    before, after = arena_buffers(shape, old), arena_buffers(shape, new)
    assert {name for name in after if after[name] != before[name]} == {"expert_gate", "expert_up"}
    assert after["expert_gate"] == 2 * before["expert_gate"] == 4 * 8208 * 8 * 512


def sizes(**changes):
    return replace(arena_sizes(point_of(DENSE, RECIPE_27B)), **changes)


def test_buffers_by_hand():
    shape, asked = shape_of(circuit_of(DENSE)), sizes(tokens=100, slots=40)
    buffers = arena_buffers(shape, asked)
    padded = 112
    assert buffers["hidden"] == buffers["residual"] == buffers["norm"] == 2 * 100 * 5120
    assert buffers["qkv"] == 2 * padded * (2 * 24 + 8) * 256
    assert buffers["attention"] == 2 * 100 * 6144
    assert buffers["logits"] == 2 * 248320 * 100
    assert buffers["ssm_qkvz"] == 2 * padded * 16384
    assert buffers["ssm_conv_f32"] == 4 * 100 * 16384
    assert buffers["gdn_chunks"] == (2 + 16) * 48 * (3 * 16384 + 32768 + 256)
    assert buffers["gate_logits"] == buffers["router_input_f32"] == 256
    assert buffers["expert_gate"] == 2 * padded * 17408
    assert buffers["int8"] == padded * 17408
    assert buffers["split_k"] == 4 * 258 * 48
    assert buffers["fp8"] == padded * 6144
    assert (buffers["ssd"], buffers["moe_fp8"]) == (0, 0)
    assert arena_bytes(shape, asked) == sum(buffers.values())


def test_logits_have_rows_for_a_prefill_or_for_every_slot():
    shape = shape_of(circuit_of(DENSE))
    rows = {
        slots: arena_buffers(shape, sizes(tokens=9000, slots=slots))["logits"] // (2 * 248320)
        for slots in (1, 255, 256, 1000)
    }
    assert rows == {1: 256, 255: 256, 256: 257, 1000: 1001}


@pytest.mark.parametrize(("slots", "split"), [(8, 32 * 24 * 11), (200, 200 * 24 * 11)])
def test_the_other_policy_splits_by_idle_sms(slots, split):
    buffers = arena_buffers(
        shape_of(circuit_of(DENSE)), sizes(slots=slots, split_k="auto", sm_count=132)
    )
    assert buffers["split_k"] == 4 * 258 * split


def test_two_phase_prefill_ends_at_the_longest_sequence():
    shape = shape_of(circuit_of(DENSE))
    assert two_phase_bytes(shape, 2176, 2048) == 2048 * (2 * 10240 + 8 * 48 + 4 * 6144)
    assert two_phase_bytes(shape_of(circuit_of("qwen3_8b")), 8192, 40960) == 0


@pytest.mark.parametrize(
    ("tokens", "rows", "max_seq_len", "size"),
    [
        (1, 32, 16, 65536),
        # a decode of 256 rows with 2049 blocks each
        (8193, 32, 32768, 32768 + 256 * 24 + 256 * 2049 * 4),
        # one of 300 rows, 24 bytes and the blocks of each
        (100, 300, 32768, 32768 + 24 * 300 + 4 * 300 * 2049),
        # eight streams of 1025 tokens: positions of three axes and slots of each, then of all
        (8193, 32, 16, 8 * 20544 + 3 * 32800 + 65600 + 128 + 40 + 32 + 64),
    ],
)
def test_scratch_is_the_largest_of_its_uses(tokens, rows, max_seq_len, size):
    shape = shape_of(circuit_of(DENSE))
    assert scratch_bytes(shape, tokens, rows, max_seq_len, 16) == size


def test_scratch_of_experts_holds_their_ids():
    dense, moe = shape_of(circuit_of(DENSE)), shape_of(circuit_of(MOE))
    tokens = 8200
    assert scratch_bytes(moe, tokens, 32, 16, 16) - 8 * tokens * 8 > 100_000
    assert scratch_bytes(moe, tokens, 32, 16, 16) > scratch_bytes(dense, tokens, 32, 16, 16)


def test_classes_of_devices_say_how_they_split():
    """Met's engine decides for four classes; for the rest its accounting refuses."""
    policies = {device.device_class: device.split_k for device in devices().by_id.values()}
    assert {name: policy for name, policy in policies.items() if policy is not None} == {
        "gb10": "legacy", "hopper": "auto", "b200": "legacy", "b300": "legacy"
    }  # fmt: skip


def test_a_device_without_sms_is_refused():
    with pytest.raises(ConfigError, match=r"hardware=cpu: met's engine runs on GPUs"):
        arena_sizes(point_of(DENSE, RECIPE_27B, device="cpu"))


def test_a_class_that_met_is_not_made_for_is_refused():
    with pytest.raises(ConfigError, match=r"hardware=l4: met's engine has no kernels .* ada"):
        arena_sizes(point_of(DENSE, RECIPE_27B, device="l4"))
