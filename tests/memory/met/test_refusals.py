"""What the met accounting refuses, by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate
from metpipe.memory.met.flags import met_flags, met_serve
from metpipe.memory.met.shape import shape_of
from metpipe.memory.met.weights import weights_of

from .points import DEFAULT, circuit_of, point_of

DENSE, MOE = "qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_fp8"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight_quantization": "fp8"}, r"weight_quantization=fp8: met serves the tiers declared"),
        ({"dflash": True}, r"serve\.dflash=true: needs serve\.dflash_gamma"),
    ],
)
def test_flags_without_a_meaning(change, message):
    with pytest.raises(ConfigError, match=message):
        met_flags(DEFAULT | change)


def test_a_flag_that_nobody_states_has_no_default():
    short = {key: value for key, value in DEFAULT.items() if key != "speculative"}
    with pytest.raises(ConfigError, match=r"serve\.speculative: the met accounting needs it"):
        met_flags(short)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor_parallel_size": 2}, r"serve\.tensor_parallel_size=2: the met accounting has no"),
        ({"graphs": False}, r"serve\.graphs=False: .*graphs=null"),
        ({"high_speed_swap": True}, r"serve\.high_speed_swap=True: .*high_speed_swap=false"),
        ({"block_sise": 16}, r"serve\.block_sise: not a serve flag"),
        ({"block_size": 0}, r"serve\.block_size: a whole number"),
    ],
)
def test_flags_without_a_term(change, message):
    with pytest.raises(ConfigError, match=message):
        met_serve(DEFAULT | change)


@pytest.mark.parametrize(
    ("load", "message"),
    [
        ((1, 1, 9), r"workload\.concurrency=9 is more than the 8 slots"),
        ((4096, 1, 1), r"are 4097 tokens, above serve\.max_seq_len=4096"),
    ],
)
def test_loads_that_no_serve_takes(load, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(point_of(DENSE, {}, load))


def without(circuit, dim):
    return replace(circuit, dims={key: size for key, size in circuit.dims.items() if key != dim})


@pytest.mark.parametrize(("choice", "dim"), [(MOE, "experts"), (DENSE, "vocab")])
def test_a_dim_that_a_weight_needs(choice, dim):
    with pytest.raises(ConfigError, match=rf"its bytes need the dim '{dim}'"):
        weights_of(without(circuit_of(choice), dim), met_flags(DEFAULT), (), {})


@pytest.mark.parametrize("dim", ["head_dim", "vocab"])
def test_a_dim_that_the_arena_needs(dim):
    with pytest.raises(ConfigError, match=rf"the arena needs the dim '{dim}'"):
        shape_of(without(circuit_of(DENSE), dim))


def test_a_shape_that_its_format_cannot_hold():
    circuit = circuit_of(DENSE)
    nodes = [
        replace(node, weight_format="fp8/g7") if node.role == "qkvz" else node
        for node in circuit.nodes
    ]
    with pytest.raises(ConfigError, match="a width of 5120 is no multiple of the 7"):
        weights_of(replace(circuit, nodes=tuple(nodes)), met_flags(DEFAULT), (), {})


def test_a_utilisation_above_the_ceiling_is_said():
    notes = evaluate(point_of(DENSE, {"gpu_memory_utilization": 0.9})).notes
    assert any("0.9 is above the ceiling 0.85 of gb10" in note for note in notes)


def test_another_class_is_a_range_unless_that_is_refused():
    point = point_of(DENSE, {}, device="b200")
    report = evaluate(point)
    assert {term.status for term in report.terms} == {"uncalibrated"}
    assert report.term("driver").low < report.term("driver").high
    strict = replace(point, device=replace(point.device, require_calibrated=True))
    with pytest.raises(ConfigError, match=r"nobody calibrated b200: the class declares no \[m"):
        evaluate(strict)
