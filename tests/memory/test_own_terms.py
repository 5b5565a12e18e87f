"""Which status a term has earned, what stands in a range, and records of swapped sequences."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metpipe.circuit import Select
from metpipe.memory import Planned, Workload, evaluate
from metpipe.memory.spill import spill_record
from tests.circuit.hybrids import TINY, circuit_of, published

MIB = 2**20


@pytest.fixture
def on_gpu(tiny, devices):
    return replace(tiny, device=devices.by_id["h100-sxm"])


@pytest.fixture(scope="module")
def hybrid(tiny, cpu_set):
    planned = Planned(circuit_of(TINY["qwen3_5"]), cpu_set, Select.all())
    return replace(tiny, planned=planned, workload=Workload(40, 8, 2), slots=2)


def status(report):
    return {term.id: term.status for term in report.terms}


def test_kernels_of_another_class_make_ranges(on_gpu):
    report = evaluate(on_gpu)
    assert status(report) == {
        "weights": "exact",
        "kv": "exact",
        "states": "exact",
        "arena": "uncalibrated",
        "workspace": "uncalibrated",
        "tables": "exact",
        "step": "uncalibrated",
        "graphs": "uncalibrated",
        "driver": "uncalibrated",
    }
    assert "hopper has no kernel set" in report.term("arena").source
    # 128 rows x 16 parts x (4 heads x 16 values, a maximum and a sum a head) x 4 bytes
    assert report.term("workspace").high == 128 * 16 * (64 + 8) * 4


def test_the_most_that_an_arena_can_be_is_a_kernel_an_op(on_gpu, tiny):
    """Hand-checked by the plan of single kernels; the fused plan of the other class is below it."""
    report = evaluate(on_gpu)
    single = Planned(tiny.planned.circuit, tiny.planned.kernel_set, Select.reference())
    alone = evaluate(replace(tiny, planned=single)).term("arena").high
    assert (report.term("arena").low, report.term("arena").high) == (0, alone)
    assert evaluate(tiny).term("arena").high < alone


def test_a_set_of_the_devices_class_is_exact(on_gpu, cpu_set):
    own = replace(cpu_set, device_class="hopper")
    planned = Planned(on_gpu.planned.circuit, own, Select.all())
    found = status(evaluate(replace(on_gpu, planned=planned)))
    assert (found["arena"], found["workspace"], found["step"]) == ("exact",) * 3


def test_a_dtype_that_this_engine_does_not_allocate_is_a_definition(tiny, hybrid, on):
    term = evaluate(on(tiny, serve={"kv_cache_dtype": "fp8"})).term("kv")
    assert (term.status, term.low) == ("uncalibrated", term.high)
    assert "does not allocate fp8" in term.source
    half = evaluate(on(hybrid, serve={"ssm_h_dtype": "f16-pool"})).term("states")
    assert half.status == "uncalibrated"


@pytest.mark.parametrize(
    ("device", "graphs", "expected"),
    [
        ("cpu", None, (0, 0, "exact")),
        ("b200", False, (0, 0, "exact")),
        ("h200-sxm", None, (0, 0, "calibrated")),
        ("h200-sxm", False, (0, 0, "exact")),
        ("h100-sxm", None, (0, 0, "uncalibrated")),
        ("gb10", None, (0, int(4.08 * 2**30), "uncalibrated")),
        ("b200", None, (0, int(4.08 * 2**30), "uncalibrated")),
        ("b200", True, (0, int(4.08 * 2**30), "uncalibrated")),
    ],
)
def test_captured_launches(tiny, devices, on, device, graphs, expected):
    named = replace(devices.by_id[device], memory_bytes=2**37)
    term = evaluate(on(tiny, device=named, serve={"graphs": graphs})).term("graphs")
    assert (term.low, term.high, term.status) == expected


def test_one_rank_exchanges_nothing(on_gpu):
    assert "collectives" not in status(evaluate(on_gpu))


def test_swapped_sequences_lie_in_the_hosts_memory(hybrid, on):
    plain = evaluate(hybrid)
    swapped = evaluate(on(hybrid, serve={"high_speed_swap": True}))
    assert swapped.terms == plain.terms
    states = {state.local: state for state in plain.counts.states if state.bytes}
    kv = sum(len(s.states) * s.unit_bytes for s in states.values() if s.holding == "blocks")
    slot = sum(len(s.states) * s.unit_bytes for s in states.values() if s.holding == "live")
    # two u64, 48 tokens of keys and values, a slot of every recurrent state; two sequences
    assert swapped.counts.host == 2 * (16 + 48 * kv + slot)
    (row,) = [state for state in swapped.counts.states if state.holding == "host"]
    assert (row.units, row.bytes) == (2, swapped.counts.host)
    assert plain.counts.host == 0


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 300), st.integers(1, 300))
def test_a_longer_sequence_is_a_larger_record(hybrid, few, more):
    states = evaluate(hybrid).counts.states
    assert spill_record(states, few) < spill_record(states, few + more)


@pytest.mark.parametrize("name", ["27B", "35B-A3B", "122B-A10B"])
def test_published_hybrids_speculate(cpu_set, devices, big, on, name):
    """Each draft keeps a slot's states once more; the draft head's cache is one layer of KV."""
    planned = Planned(circuit_of(published(name)), cpu_set, Select.all())
    point = replace(big, planned=planned, slots=8)
    plain = evaluate(point)
    drafted = evaluate(on(point, serve={"speculative": True, "num_drafts": 3}))
    slot = plain.term("states").low // 9
    assert drafted.term("states").low == plain.term("states").low + 8 * 3 * slot
    blocks = drafted.counts.kv_blocks
    assert blocks == 8 * (5120 // 16 + 1) + 1
    circuit = planned.circuit
    side = circuit.dims["kv_heads"] * circuit.dims["head_dim"]
    assert drafted.term("kv").low - plain.term("kv").low == 2 * blocks * 16 * side * 2
    assert {run.label: run.rows for run in drafted.counts.runs} == {
        "decode": 8,
        "prefill": 4096,
        "verify_batch": 32,
        "draft": 8,
    }
