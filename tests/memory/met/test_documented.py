"""Serves whose bytes are documented, term by term, in MiB."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from metpipe.circuit import weight_matrix
from metpipe.memory import evaluate, max_concurrency, max_isl
from metpipe.memory.met.side import BootPools

from .points import (
    MIB,
    RECIPE_27B,
    RECIPE_35B_NVFP4,
    RECIPE_122B,
    exact,
    mib,
    point_of,
)

DENSE, MOE, LARGE = "qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_nvfp4", "qwen3_5_122b_a10b_nvfp4"


def test_the_recipe_of_the_dense_hybrid():
    report = evaluate(point_of(DENSE, RECIPE_27B, (32767, 1, 1)))
    assert mib(report) == pytest.approx(
        {
            "weights": 21449.082,
            "outside": 883.860,
            "copies": 26499.533,
            "arena": 3720.020,
            "two_phase": 355.043,
            "workspace": 0,
            "kv": 2050.000 + 128.125,
            "states": 1530.000,
            "snapshots": 38786.5,
            "carry": 51.306,
            "speculation": 0.750 + 1.250,
            "driver": 3248.481,
        },
        abs=6e-4,
    )
    assert report.headroom_low / MIB == pytest.approx(7223.729, abs=6e-4)
    assert (report.pool.blocks_needed, report.pool.blocks_low) == (2050, 9273)


def test_captured_rows_are_charged_and_leave_fewer_blocks():
    report = evaluate(point_of(DENSE, RECIPE_27B, (32767, 1, 1), capture_rows=32768))
    assert report.headroom_low / MIB == pytest.approx(6903.729, abs=6e-4)
    assert report.pool.blocks_low == 8953


def test_the_recipe_of_the_hybrid_with_experts():
    report = evaluate(point_of(MOE, RECIPE_35B_NVFP4, (262143, 1, 8)))
    assert mib(report) == pytest.approx(
        {
            "weights": 21469.051,
            "outside": 853.996,
            "copies": 18727.892,
            "arena": 2137.802,
            "two_phase": 258.252,
            "workspace": 0,
            "kv": 20481.406 + 4096.281,
            "states": 1755.000,
            "snapshots": 8160.5,
            "carry": 101.618,
            "speculation": 0.469 + 0.500,
            "driver": 3248.481,
        },
        abs=6e-4,
    )
    assert report.headroom_low / MIB == pytest.approx(24636.43, abs=6e-3)


def test_the_large_one_on_one_device():
    report = evaluate(point_of(LARGE, RECIPE_122B, (16383, 1, 1)))
    # The published weights are a sum of rounded parts, 0.08 MiB less; so the headroom differs too.
    assert mib(report) == pytest.approx(
        {
            "weights": 76828.13,
            "outside": 0,
            "copies": 1277.438,
            "arena": 3613.27,
            "two_phase": 452.055,
            "workspace": 0,
            "kv": 192.375,
            "states": 301.500,
            "snapshots": 1206.0,
            "carry": 0,
            "speculation": 0,
            "driver": 3248.481,
        },
        abs=6e-3,
    )
    assert report.headroom_low / MIB == pytest.approx(18808.5, abs=0.1)


@pytest.mark.parametrize(
    ("number", "derived", "leaked", "device", "headroom"),
    [(1, 31184.5, 4685.0, 101227.5, 4691.7), (2, 26499.5, 0, 96542.5, 9376.7)],
)
def test_the_golden_report_of_the_dense_hybrid(number, derived, leaked, device, headroom):
    """At a boot's own pools, on the exact device, without outside bytes.

    It charges no legacy arena, but the planned activations, 1.9 MiB under that engine's own fusion
    rules, and the workspace of its attention, 48 x 258 x 4 bytes. This project's rules and kernels
    give other ones, so both figures are taken from there and not computed.
    """
    point = exact(point_of(DENSE, RECIPE_27B, number=number, outside=0, capture_rows=32768))
    report = evaluate(replace(point, met=replace(point.met, pools=BootPools(4380, 4380))))
    found = mib(report)
    states = found["kv"] + found["states"]
    caches = found["snapshots"] + found["carry"] + found["speculation"]
    assert round(found["weights"], 1) == 21449.1
    assert round(found["copies"], 1) == derived
    assert round(point.met.weights.leaked / MIB, 1) == leaked
    assert states == 6183.75
    assert round(caches, 1) == 39159.8
    assert round(found["driver"], 1) == 3248.3
    total = found["weights"] + found["copies"] + states + caches + found["driver"]
    total += 1.9 + 48 * 258 * 4 / MIB
    assert total == pytest.approx(device, abs=0.1)
    assert report.budget / MIB - total == pytest.approx(headroom, abs=0.1)


def test_nemotron_super_lies_between_what_its_formats_may_be():
    """Documented are 7363 MiB and 150591 blocks; its FP8 matrices are known in part only."""
    serve = {"max_seq_len": 65536, "kv_cache_dtype": "fp8", "weight_quantization": "nvfp4"}
    point = point_of("nemotron_3_super_120b_a12b_nvfp4", serve, (65535, 1, 8))
    report = evaluate(point)
    assert report.pool is not None
    assert report.pool.blocks_needed == 32777
    assert (150591 - 32777) * report.pool.block_bytes // MIB == 7363
    nodes = point.met.model.circuit.nodes
    open_roles = {"mamba_in", "mamba_out", "latent_in", "latent_out"}
    unknown = [n for n in nodes if n.role in open_roles and n.weight_format in (None, "bf16")]
    halved = sum(math.prod(weight_matrix(point.met.model.circuit, node)) for node in unknown)
    headroom = report.headroom_low
    assert headroom < 7363 * MIB < headroom + halved


def test_slots_bound_the_sequences_unless_they_follow_them():
    serve = RECIPE_35B_NVFP4 | {"max_seq_len": 32768}
    fixed = point_of(MOE, serve, (1024, 64, 1))
    assert max_concurrency(fixed).surely == 8
    following = replace(fixed, slots_follow=True)
    answer = max_concurrency(following)
    assert (answer.high, answer.surely) == (128, 128)
    assert evaluate(following).term("states").low < evaluate(fixed).term("states").low


def test_a_prompt_fits_up_to_some_length_and_no_further():
    serve = RECIPE_35B_NVFP4 | {"kv_cache_dtype": "bf16", "ssm_cache_slots": 400}
    serve |= {"max_batch_size": 16}
    point = point_of(MOE, serve, (1, 64, 16))
    answer = max_isl(point)
    assert 1 < answer.surely < 262144 - 64
    assert answer.exceptions == ()
    for step, fits in ((0, "fits"), (1, "does not fit"), (500, "does not fit")):
        load = replace(point.workload, isl=answer.surely + step)
        assert evaluate(replace(point, workload=load)).answer == fits


def test_the_total_of_a_boot_of_nemotron_nano():
    """Its ledger holds 42.44 GB; weights are 0.19 % short, since routers are stored in f32."""
    point = point_of(
        "nemotron_3_nano_30b_a3b_nvfp4",
        {"kv_cache_dtype": "fp8", "max_seq_len": 8192, "weight_quantization": "nvfp4"},
    )
    report = evaluate(replace(point, met=replace(point.met, pools=BootPools(4105, 0))))
    found = mib(report)
    allocated = sum(size for term, size in found.items() if term != "driver")
    assert 0.997 < allocated * MIB / 42.44e9 < 1
