"""A serve's whole bill, against arithmetic by hand and against plans fused and laid out afresh."""

from __future__ import annotations

import random
from dataclasses import replace

from metpipe.circuit import layout, padded_rows
from metpipe.memory import Boot, evaluate

MIB = 2**20


def bytes_of(report):
    return {term.id: (term.low, term.high) for term in report.terms}


def test_golden_plan_of_qwen3_8b(big):
    report = evaluate(big)
    # A layer: q and o 4096 x 4096, k and v 1024 x 4096, gate, up and down 12288 x 4096, two norms
    # of 4096, q and k norms of 128:
    # 2 x 16777216 + 2 x 4194304 + 3 x 50331648 + 8192 + 256 = 192946432.
    # Embedding and head 151936 x 4096 each, final norm 4096.
    weights = 2 * (36 * 192_946_432 + 2 * 151_936 * 4096 + 4096)
    assert weights == 16_381_470_720
    # floor(5120 / 16) + 1 = 321 blocks a sequence, 8 of them and a dummy: 2569 blocks. A block of
    # one side of one layer: 16 x 8 heads x 128 x 2 bytes = 32768.
    kv = 36 * 2 * 2569 * 32_768
    # The widest moment of a 4096-row prefill with one kernel per op: x below two rows of 4096 at
    # silu_mul, gate||up of 24576 after a hole of 4096, act of 12288 behind it. Elements of 2 bytes:
    # (4096 + 4096 + 24576 + 12288) x 2 = 90112 bytes a row. The class has no kernels of its own:
    # that is the most it can be.
    arena = 4096 * 90_112
    # 128 rows x 16 parts x (32 heads x 128, a maximum and a sum a head) in f32
    parts = 128 * 16 * (4096 + 2 * 32) * 4
    # Cosine and sine: 40960 positions x 64 pairs x 4 bytes each.
    tables = 2 * 40_960 * 64 * 4
    # 4096 rows x (token, position, slot, snapshot + 2561 blocks) x 4 bytes.
    step = 4096 * 2565 * 4
    # 475 MiB .. 1 GiB + floor(163461086576 / 1000) x 21
    driver = (475 * MIB, 2**30 + 163_461_086 * 21)
    graphs = int(4.08 * 2**30)
    assert bytes_of(report) == {
        "weights": (weights, weights),
        "kv": (kv, kv),
        "states": (0, 0),
        "arena": (0, arena),
        "workspace": (0, parts),
        "tables": (tables, tables),
        "step": (step, step),
        "graphs": (0, graphs),
        "driver": driver,
    }
    assert report.budget == 163_461_086_576
    assert report.total_low == weights + kv + tables + step + driver[0]
    open_ = arena + parts + graphs + driver[1] - driver[0]
    assert report.total_high - report.total_low == open_
    assert report.headroom_low == 163_461_086_576 - report.total_high
    assert report.answer == "fits"


def test_golden_pool_is_what_the_rest_leaves(big):
    report = evaluate(big)
    # a block of all layers and both sides: 72 x 32768
    assert (report.pool.block_bytes, report.pool.blocks_needed) == (2_359_296, 2569)
    rest = report.total_high - report.term("kv").low
    assert report.pool.blocks_low == (report.budget - rest) // 2_359_296
    assert report.pool.blocks_high > report.pool.blocks_low


def test_runs_show_arena_and_plain_sum(big):
    decode, prefill = evaluate(big).counts.runs
    assert (decode.mode, decode.rows, prefill.mode, prefill.rows) == (
        "multi_seq",
        8,
        "prefill",
        4096,
    )
    # Elements a row and layer: xn 4096, q 4096, k and v 1024, qn 4096, kn 1024, qr 4096, kr 1024,
    # a, o, y 4096 each; then xn 4096, gate||up 24576, act 12288, down, y 4096: 81920 in all.
    # Outside: x and the head's xn 4096 each, logits 151936 in bf16; a token of 4 bytes.
    row = 2 * (36 * 81_920 + 4096)
    assert decode.materialized == 8 * (row + 2 * (4096 + 151_936) + 4)
    assert prefill.materialized == 4096 * row + 2 * (4096 + 151_936) + 4


def test_a_tied_head_is_counted_once(tiny):
    report = evaluate(tiny)
    # A layer: q and o 64 x 64, k and v 32 x 64, gate, up, down 96 x 64, norms 2 x 64 + 2 x 16:
    # 8192 + 4096 + 18432 + 160 = 30880; embedding 250 x 64, final norm 64.
    assert report.term("weights").low == 2 * (3 * 30_880 + 250 * 64 + 64)
    stored = {node.node: node.stored for node in report.counts.nodes}
    assert stored["head.lm_head"] == 0
    assert sum(stored.values()) == report.term("weights").low


def test_one_sequence_runs_the_decode_plan(tiny, on):
    decode = evaluate(on(tiny, load={"concurrency": 1})).counts.runs[0]
    assert (decode.mode, decode.rows) == ("decode", 1)


def test_a_cpu_is_charged_nothing_and_every_term_is_exact(tiny):
    report = evaluate(tiny)
    assert (report.term("driver").high, report.total_low) == (0, report.total_high)
    assert {term.status for term in report.terms} == {"exact"}


def test_a_class_says_where_its_range_begins(big, devices, on):
    term = evaluate(on(big, device=devices.by_id["rtx-3090"])).term("driver")
    # budget floor(25318832209 x 0.85): 309 MiB .. 1 GiB + 21521007 x 21
    assert (term.low, term.high) == (309 * MIB, 2**30 + 21_521_007 * 21)
    assert term.status == "uncalibrated"
    assert "a context of 309 MiB" in term.source


def test_the_fp8_cache_is_half_as_large(tiny, on):
    half = evaluate(on(tiny, serve={"kv_cache_dtype": "fp8"})).term("kv").low
    assert 2 * half == evaluate(tiny).term("kv").low


def test_three_answers_of_a_range(big, on):
    low = evaluate(big).total_low  # with the smallest driver, whatever the budget
    for memory_bytes, answer in [(low - 1, "does not fit"), (low, "depends"), (2 * low, "fits")]:
        device = replace(big.device, memory_bytes=memory_bytes)
        report = evaluate(on(big, device=device, serve={"gpu_memory_utilization": 1.0}))
        assert report.answer == answer
        assert (report.headroom_low >= 0, report.headroom_high >= 0) == {
            "does not fit": (False, False),
            "depends": (False, True),
            "fits": (True, True),
        }[answer]


def fresh(point):
    """The terms that depend on plans, with nothing remembered."""
    load, serve = point.workload, point.serve
    rows = padded_rows(load.concurrency)
    runs = [("decode" if rows == 1 else "multi_seq", rows)]
    runs.append(("prefill", min(serve.max_prefill_tokens, load.isl)))
    laid = [layout(point.planned.plan(mode, rows), rows) for mode, rows in runs]
    return [(one.total, one.materialized) for one in laid]


def random_points(point, on, count, seed):
    random_ = random.Random(seed)
    for _ in range(count):
        isl = random_.choice([1, 2, 15, 16, 17, 33, 100, random_.randint(1, 8192)])
        concurrency = random_.choice([1, 2, 3, 5, 13, 128, random_.randint(1, 128)])
        yield on(
            point, load={"isl": isl, "osl": random_.randint(1, 100), "concurrency": concurrency}
        )


def test_evaluation_equals_plans_made_afresh(tiny, on):
    for point in random_points(tiny, on, 40, seed=1):
        runs = evaluate(point).counts.runs
        assert [(run.arena, run.materialized) for run in runs] == fresh(point)


def test_evaluation_equals_plans_made_afresh_on_a_deep_model(big, on):
    for point in random_points(big, on, 3, seed=2):
        runs = evaluate(point).counts.runs
        assert [(run.arena, run.materialized) for run in runs] == fresh(point)


def test_a_boot_is_evaluated_at_its_own_sizes(tiny):
    boot = Boot(kv_blocks=10, slots=2, runs=(("decode", 1), ("prefill", 7)))
    report = evaluate(replace(tiny, boot=boot))
    # 3 layers x 2 sides x 10 blocks x 16 tokens x 2 heads x 16 x 2 bytes
    assert report.term("kv").low == 3 * 2 * 10 * 16 * 2 * 16 * 2
    assert [run.rows for run in report.counts.runs] == [1, 7]
    # 7 rows x (4 + 2561) x 4
    assert report.term("step").low == 7 * 2565 * 4


def test_notes_say_what_was_assumed(big, devices, on):
    notes = " ".join(evaluate(big).notes)
    assert "planned with the kernel set cpu: there is none for b200" in notes
    high = on(big, device=devices.by_id["gb10"], serve={"gpu_memory_utilization": 0.9})
    assert "utilisation 0.9 is above the ceiling 0.85" in " ".join(evaluate(high).notes)
