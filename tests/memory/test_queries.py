"""Each inverse query against a walk over its values, and which changes would make a plan fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metpipe.circuit import Select
from metpipe.errors import ConfigError
from metpipe.memory import (
    Planned,
    Workload,
    answered,
    evaluate,
    fixes,
    max_isl,
    max_osl,
    max_slots,
    max_snapshot_slots,
    max_verify,
    min_device,
    min_utilization,
    questions,
)
from metpipe.memory.fixes import switches
from metpipe.memory.inverse import Question
from tests.circuit.hybrids import TINY, circuit_of
from tests.memory.met.points import point_of

GIB = 2**30
KIB = 2**10


@pytest.fixture(scope="module")
def hybrid(cpu_set, devices):
    """The smallest hybrid with a draft head on a CPU of 700 KiB: two sequences of 40 + 8 tokens."""
    planned = Planned(circuit_of(TINY["qwen3_5"]), cpu_set, Select.all())

    def make(tiny, memory_bytes=700 * KIB):
        cpu = replace(devices.by_id["cpu"], memory_bytes=memory_bytes)
        load = Workload(40, 8, 2)
        serve = replace(tiny.serve, max_seq_len=512)
        return replace(tiny, planned=planned, device=cpu, workload=load, serve=serve, slots=4)

    return make


def walked(values, fits):
    """The last value up to which all fit."""
    best = None
    for value in values:
        if not fits(value):
            return best
        best = value
    return best


def test_longest_output(big, devices, on):
    point = on(big, device=replace(devices.by_id["cpu"], memory_bytes=24 * GIB))
    answer = max_osl(point)
    assert 1 < answer.surely < 40960 - 4096
    for osl in (answer.surely, answer.surely + 1):
        fits = evaluate(on(point, load={"osl": osl})).answer == "fits"
        assert fits == (osl == answer.surely)


def test_most_slots_by_hand(tiny, hybrid):
    point = hybrid(tiny)
    report = evaluate(point)
    slot = report.term("states").low // 5  # four slots and the dummy
    spare = report.headroom_low // slot
    assert spare > 1
    assert max_slots(point).surely == 4 + spare


def test_slots_of_a_model_without_recurrent_state_size_nothing(tiny):
    answer = max_slots(tiny)
    assert (answer.surely, answer.why) == (
        None,
        "slots size nothing: the model keeps no recurrent state",
    )


def test_widest_verify_against_a_walk(tiny, hybrid, on):
    point = hybrid(tiny)
    answer = max_verify(point)

    def fits(width):
        serve = {"speculative": True, "num_drafts": width - 1}
        return evaluate(on(point, serve=serve)).answer == "fits"

    assert answer.surely == walked(range(2, 9), fits)
    assert 2 <= answer.surely < 8


def test_a_verify_needs_a_draft_head(tiny):
    assert max_verify(tiny).why == "the model has no draft head"


def test_this_engine_keeps_no_snapshots(tiny):
    assert max_snapshot_slots(tiny).why == "this engine keeps no prefix cache"


def test_smallest_share_of_the_memory_in_thousandths(tiny, on):
    point = on(tiny, device=replace(tiny.device, memory_bytes=64 * 2**20))
    answer, total = min_utilization(point), evaluate(point).total_high
    assert answer.surely == -(-total * 1000 // (64 * 2**20)) / 1000
    for share, fits in ((answer.surely, True), (answer.surely - 0.001, False)):
        found = evaluate(on(point, serve={"gpu_memory_utilization": share})).answer
        assert (found == "fits") == fits


def test_a_strict_device_is_asked_up_to_its_ceiling(tiny, devices, on):
    gb10 = replace(devices.by_id["gb10"], strict=True)
    answer = min_utilization(on(tiny, device=gb10))
    assert (answer.high, answer.low) == (0.85, 0.001)


def gpus(point, devices):
    return [replace(point, device=one) for one in devices.by_id.values() if one.kind == "gpu"]


def test_smallest_device_is_the_smallest_on_which_it_fits(big, devices, on):
    point = on(big, load={"concurrency": 100})
    candidates = gpus(point, devices)
    answer = min_device(point, candidates)
    fitting = [one.device for one in candidates if evaluate(one).answer == "fits"]
    assert answer.surely == min(fitting, key=lambda device: device.memory_bytes).id
    assert answer.evaluations == len(candidates)
    assert answer.low == min(candidates, key=lambda one: one.device.memory_bytes).device.id


def test_a_larger_device_that_does_not_fit_is_named(big, devices, on):
    """Where nobody calibrated, graphs may take 4 GiB; where somebody did, the driver holds them."""
    small = replace(devices.by_id["h200-sxm"], memory_bytes=28 * GIB)
    large = replace(devices.by_id["b200"], memory_bytes=29 * GIB)
    candidates = [replace(big, device=one) for one in (small, large)]
    assert [evaluate(one).answer for one in candidates] == ["fits", "depends"]
    answer = min_device(big, candidates)
    assert (answer.surely, answer.possibly) == ("h200-sxm", "h200-sxm")
    assert answer.exceptions == ("b200",)


def test_devices_that_the_flags_refuse_are_not_asked(big, devices):
    candidates = [
        replace(one, device=replace(one.device, require_calibrated=True))
        for one in gpus(big, devices)
    ]
    answer = min_device(big, candidates)
    assert (answer.low, answer.high) == ("h200-sxm", "h200-sxm")
    refused = [one for one in candidates if one.device.id != "h200-sxm"]
    why = "their driver's part is a range, and hardware.require_calibrated is true"
    assert answer.left_out == {why: tuple(one.device.id for one in refused)}
    none = min_device(big, refused)
    assert none.why == "the flags refuse every device of the registry"
    assert none.left_out == answer.left_out


def test_each_reason_names_its_devices(big, devices):
    """A plan on a device of an unknown size, above a ceiling, and on one that takes it."""
    strict = replace(devices.by_id["gb10"], strict=True)
    unknown = replace(devices.by_id["b200"], memory_bytes=None)
    candidates = [replace(big, device=one) for one in (strict, unknown, devices.by_id["h100-sxm"])]
    serve = replace(big.serve, gpu_memory_utilization=0.9)
    answer = min_device(big, [replace(one, serve=serve) for one in candidates])
    assert answer.surely == "h100-sxm"
    assert answer.left_out == {
        "serve.gpu_memory_utilization=0.9 is above the ceiling of their class, and "
        "hardware.strict is true": ("gb10",),
        "their memory is unknown": ("b200",),
    }


def test_an_error_that_is_no_devices_own_is_told(big, devices, on):
    """Not taken for a device that can't be asked: no device would mend it."""
    candidates = gpus(on(big, load={"isl": 2**31}), devices)
    with pytest.raises(ConfigError, match=r"workload\.isl=2147483648: more than"):
        min_device(big, candidates)


def test_devices_without_kernels_of_mets_engine_are_named(devices):
    point = point_of("qwen3_8_27b_nvfp4", {}, (1024, 512, 4))
    left_out = min_device(point, gpus(point, devices)).left_out
    assert left_out.keys() == {"met's engine has no kernels for their class"}
    (without,) = left_out.values()
    assert without == tuple(
        key
        for key, one in devices.by_id.items()
        if one.kind == "gpu" and one.device_class not in ("gb10", "hopper", "b200", "b300")
    )


def test_prompts_and_outputs_end_where_the_model_does(tiny):
    point = replace(tiny, max_positions=512)
    assert max_isl(point).surely == 512 - 20
    assert max_osl(point).surely == 512 - 100
    (note,) = [one for one in evaluate(point).notes if "max_position" in one]
    assert "serve.max_seq_len=40960 is beyond the 512 tokens" in note


def test_a_workload_beyond_the_model_is_said(tiny):
    notes = evaluate(replace(tiny, max_positions=64)).notes
    assert "the workload's 120 tokens are beyond them as well" in notes


@settings(deadline=None, max_examples=30)
@given(
    isl=st.integers(1, 400),
    osl=st.integers(1, 100),
    concurrency=st.integers(1, 4),
    memory=st.integers(1200, 12_000),
)
def test_every_answer_is_an_edge(tiny, hybrid, devices, isl, osl, concurrency, memory):
    """Whatever the load and the device: the answer fits, one step on does not, and all agree."""
    point = replace(hybrid(tiny, memory * KIB), workload=Workload(isl, osl, concurrency))
    for question in questions(point, gpus(point, devices)):
        answer = answered(question)
        if answer.why:
            continue
        values = list(question.values)
        edge = -1 if answer.surely is None else values.index(answer.surely)
        if edge >= 0:
            assert evaluate(question.at(values[edge])).answer == "fits"
        if edge + 1 < len(values):
            assert evaluate(question.at(values[edge + 1])).answer != "fits"
        assert answer.exceptions == ()
        assert answer.evaluations <= 60


LOADS = st.tuples(st.integers(1, 400), st.integers(1, 100), st.integers(1, 4), st.integers(4, 20))


@settings(deadline=None, max_examples=60)
@given(LOADS, LOADS, st.sampled_from([None, 1, 3]))
def test_more_of_anything_never_takes_less(tiny, hybrid, one, other, drafts):
    """Prompt, output, sequences and slots: what every query presumes of the evaluator."""
    least = [min(pair) for pair in zip(one, other, strict=True)]
    most = [max(pair) for pair in zip(one, other, strict=True)]
    point = hybrid(tiny)
    serve = replace(point.serve, speculative=drafts is not None, num_drafts=drafts)

    def terms(isl, osl, concurrency, slots):
        load = Workload(isl, osl, concurrency)
        return evaluate(replace(point, workload=load, slots=slots, serve=serve)).terms

    for small, large in zip(terms(*least), terms(*most), strict=True):
        assert small.low <= large.low
        assert small.high <= large.high


def tried(point, candidates=()):
    asked = (*questions(point, candidates), *switches(point))
    return fixes(evaluate(point).answer, asked, [answered(question) for question in asked])


def test_what_fits_needs_no_change(tiny):
    assert tried(tiny) == ()


def test_each_change_is_tried_and_would_make_it_fit(big, devices, on):
    point = on(big, device=replace(devices.by_id["cpu"], memory_bytes=25 * GIB), load={"isl": 6000})
    assert evaluate(point).answer == "does not fit"
    found = {fix.override.partition("=")[0]: fix for fix in tried(point, gpus(point, devices))}
    assert set(found) == {
        "workload.concurrency",
        "workload.isl",
        "serve.gpu_memory_utilization",
        "serve.kv_cache_dtype",
        "hardware",
    }
    device = min_device(point, gpus(point, devices)).surely
    assert found["hardware"].override == f"hardware={device.replace('-', '_')}"
    assert found["serve.kv_cache_dtype"].override == "serve.kv_cache_dtype=fp8"
    concurrency = int(found["workload.concurrency"].override.partition("=")[2])
    changed = evaluate(on(point, load={"concurrency": concurrency}))
    assert changed.answer == found["workload.concurrency"].answer == "fits"
    assert changed.headroom_low == found["workload.concurrency"].headroom_low


def test_drafts_and_slots_are_changes_of_a_hybrid(tiny, hybrid, on):
    serve = replace(hybrid(tiny).serve, speculative=True, num_drafts=7)
    crowded = replace(hybrid(tiny, 800 * KIB), slots=30, serve=serve)
    found = {fix.override.partition("=")[0]: fix.override for fix in tried(crowded)}
    assert found["slots"] == f"slots={max_slots(crowded).surely}"
    tight = replace(hybrid(tiny, 650 * KIB), slots=2, serve=serve)
    found = {fix.override.partition("=")[0]: fix.override for fix in tried(tight)}
    assert found["serve.speculative"] == "serve.speculative=false serve.num_drafts=null"
    assert found["serve.num_drafts"] == f"serve.num_drafts={max_verify(tight).surely - 1}"


def test_a_better_answer_is_offered_where_none_is_sure(big, on):
    low = evaluate(big).total_low
    device = replace(big.device, memory_bytes=low - 2**30)
    point = on(big, device=device, serve={"gpu_memory_utilization": 1.0})
    assert {fix.answer for fix in tried(point)} == {"depends"}


def test_eager_launches_are_a_change_where_graphs_are_a_range(big, on):
    report = evaluate(big)
    without = report.total_high - report.term("graphs").high
    device = replace(big.device, memory_bytes=without + 2**30)
    serve = {"gpu_memory_utilization": 1.0}
    point = on(big, device=device, serve=serve)
    assert evaluate(point).answer == "depends"
    assert "serve.graphs=false" in {fix.override for fix in tried(point)}
    eager = on(big, device=device, serve=serve | {"graphs": False})
    assert evaluate(eager).answer == "fits"


def test_nothing_helps_where_the_weights_alone_are_too_large(big, on):
    assert tried(on(big, device=replace(big.device, memory_bytes=GIB))) == ()


def test_an_exception_on_either_side_of_an_answer_is_found():
    answers = {**{n: "fits" for n in range(1, 11)}, 9: "depends", 13: "fits"}

    def at(value):
        return value

    question = Question("q", "most", range(1, 21), at, str)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "metpipe.memory.inverse.answer_at", lambda value: answers.get(value, "does not fit")
        )
        answer = answered(question)
    assert answer.surely == 10
    assert answer.exceptions == (9, 13)


def test_met_answers_the_same_questions(devices):
    """Its slots follow nothing, its snapshots are the prefix cache's, its verify the ladder's."""
    flags = {
        "max_seq_len": 32768,
        "max_batch_size": 8,
        "enable_prefix_caching": True,
        "ssm_cache_slots": 64,
        "speculative": True,
        "num_drafts": 3,
        "weight_quantization": "nvfp4",
    }
    point = point_of("qwen3_8_27b_nvfp4", flags, (4096, 512, 4))
    answers = {q.query: (q, answered(q)) for q in questions(point, gpus(point, devices))}
    for name in ("max_slots", "max_snapshot_slots", "max_osl", "min_utilization"):
        question, answer = answers[name]
        values = list(question.values)
        edge = values.index(answer.surely)
        assert evaluate(question.at(values[edge])).answer == "fits"
        assert edge + 1 == len(values) or (evaluate(question.at(values[edge + 1])).answer != "fits")
    assert 64 < answers["max_snapshot_slots"][1].surely < 1000
    assert answers["max_verify"][1].surely == 8


@pytest.mark.parametrize(
    ("flags", "beside"),
    [
        ({}, ("serve.enable_prefix_caching=true", "serve.speculative=true")),
        ({"enable_prefix_caching": True, "speculative": True}, ("", "")),
    ],
)
def test_what_is_asked_of_another_serve_says_what_that_has(flags, beside):
    serve = {"max_seq_len": 32768, "max_batch_size": 8, "weight_quantization": "nvfp4"}
    point = point_of("qwen3_8_27b_nvfp4", serve | flags, (4096, 512, 4))
    answers = (max_snapshot_slots(point), max_verify(point))
    assert tuple(answer.beside for answer in answers) == beside


def test_met_decides_again_on_its_expert_tables(devices):
    """At a small share the tables are skipped: what is asked there is the plan of such a boot."""
    serve = {
        "max_seq_len": 32768,
        "max_batch_size": 8,
        "kv_cache_dtype": "fp8",
        "weight_quantization": "nvfp4",
    }
    point = point_of("qwen3_6_35b_a3b_nvfp4", serve, (1024, 256, 1))
    assert point.met.decision.builds
    answer = min_utilization(point)
    with_tables = evaluate(point).term("copies").low
    question = next(q for q in questions(point, []) if q.query == "min_utilization")
    least = question.at(answer.surely)
    assert not least.met.decision.builds
    assert evaluate(least).term("copies").low < with_tables
    assert evaluate(least).answer == "fits"


def test_flags_that_only_size_pools_leave_the_weights_as_they_are():
    serve = {
        "max_seq_len": 4096,
        "weight_quantization": "nvfp4",
        "lm_head_dtype": "bf16",
        "speculative": True,
    }
    few = point_of("qwen3_6_35b_a3b_nvfp4", serve | {"num_drafts": 1})
    more = point_of("qwen3_6_35b_a3b_nvfp4", serve | {"num_drafts": 3, "ssm_cache_slots": 9})
    assert few.met.weights is more.met.weights
    off = point_of("qwen3_6_35b_a3b_nvfp4", serve | {"speculative": False})
    assert off.met.weights.derived < few.met.weights.derived
