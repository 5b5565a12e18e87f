"""Plans of several ranks: bytes by hand, the fullest decides, queries and refusals go with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Ranks, Select, circuit_from_config
from metpipe.errors import ConfigError
from metpipe.memory import (
    Planned,
    evaluate,
    max_concurrency,
    node_shares,
    share_out,
    to_record,
)
from metpipe.memory.metpipe import count
from metpipe.memory.ranks import rank_point, rank_points
from metpipe.resources import kernels_dir
from tests.circuit.hybrids import circuit_of, published

from .conftest import QWEN3_8B


@pytest.fixture
def shared(big, cpu_set):
    """The point of Qwen3-8B shared out."""
    circuit = circuit_from_config(QWEN3_8B, kernels_dir())

    def make(**ranks):
        parallel = share_out(circuit, Ranks(**ranks), cpu_set, Select.reference())
        return replace(big, parallel=parallel, planned=parallel.stages[0].planned)

    return make


def test_a_rank_of_four_by_hand(shared, big):
    report = evaluate(shared(tensor=4))
    # A layer: q and o 1024 x 4096, k and v 256 x 4096, gate, up, down 3072 x 4096; norms whole.
    layer = 2 * 1024 * 4096 + 2 * 256 * 4096 + 3 * 3072 * 4096 + 2 * 4096 + 2 * 128
    weights = 2 * (36 * layer + 2 * 151_936 // 4 * 4096 + 4096)
    assert report.term("weights").low == weights
    assert report.term("kv").low == evaluate(big).term("kv").low // 4
    (rank,) = report.ranks
    assert (rank.first, rank.last, rank.first_layer, rank.last_layer) == (0, 3, 0, 35)
    # The rows of a step are each rank's; tables and inputs are whole.
    for whole in ("tables", "step"):
        assert report.term(whole).low == evaluate(big).term(whole).low


def test_stages_by_hand(shared):
    report = evaluate(shared(pipeline=2))
    layer, table = 192_946_432, 151_936 * 4096
    first, last = ({term.id: term.low for term in rank.terms} for rank in report.ranks)
    assert first["weights"] == 2 * (18 * layer + table)
    assert last["weights"] == 2 * (18 * layer + table + 4096)
    assert first["kv"] == last["kv"] == 18 * 2 * 2569 * 32_768
    assert report.fullest == 1
    assert report.total_high == max(rank.total_high for rank in report.ranks)


def test_nothing_of_several_ranks_is_called_exact(shared):
    report = evaluate(shared(tensor=2))
    assert {term.status for term in report.terms} == {"uncalibrated"}
    assert "this engine runs one rank" in report.term("kv").source
    collectives = report.term("collectives")
    assert (collectives.low, collectives.high) == (0, int(1.85 * 2**30))


def test_the_fullest_rank_decides(shared):
    point = shared(pipeline=2)
    least, most = sorted(rank.total_low for rank in evaluate(point).ranks)
    between = replace(point.device, memory_bytes=(least + most) // 2)
    tight = replace(point, device=between, serve=replace(point.serve, gpu_memory_utilization=1.0))
    assert sorted(rank.answer for rank in evaluate(tight).ranks) == ["depends", "does not fit"]
    assert evaluate(tight).answer == "does not fit"


def test_the_pool_is_that_of_the_rank_with_the_least_room(shared):
    report = evaluate(shared(pipeline=3))
    rank = report.ranks[report.fullest]
    terms = {term.id: term.high for term in rank.terms}
    rest = rank.total_high - terms["kv"]
    assert report.pool.blocks_low == (report.budget - rest) // report.pool.block_bytes


def test_queries_ask_every_rank(shared):
    point = shared(tensor=2, pipeline=2)
    device = replace(point.device, memory_bytes=20 * 2**30)
    small = replace(point, device=device)
    answer = max_concurrency(small)

    def at(concurrency):
        return replace(small, workload=replace(small.workload, concurrency=concurrency))

    assert 1 <= answer.surely < answer.possibly < 128
    assert all(rank.answer == "fits" for rank in evaluate(at(answer.surely)).ranks)
    assert not all(rank.answer == "fits" for rank in evaluate(at(answer.surely + 1)).ranks)


def test_only_the_last_stage_drafts(big, cpu_set):
    parallel = share_out(
        circuit_of(published("27B")), Ranks(tensor=4, pipeline=2), cpu_set, Select.all()
    )
    serve = replace(big.serve, speculative=True, num_drafts=3)
    point = replace(
        big, serve=serve, parallel=parallel, planned=parallel.stages[0].planned, slots=8
    )
    first, last = map(count, rank_points(point))
    assert [run.label for run in first.runs] == ["decode", "prefill", "verify_batch"]
    assert [run.label for run in last.runs][-1] == "draft"
    first_terms, last_terms = ({term.id: term.low for term in one.terms} for one in (first, last))
    # 24 recurrent layers of each stage: h 12 heads x 128 x 128, a window of 2560 x 4, in f32, for
    # eight slots, the dummy and three drafts of each sequence
    unit = (12 * 128 * 128 + 2560 * 4) * 4
    assert first_terms["states"] == last_terms["states"] == 24 * (8 + 1 + 24) * unit
    # 8 attention layers of each stage, and the draft head's, of one key head of 256
    side = first.kv_blocks * 16 * 256 * 2
    assert (first_terms["kv"], last_terms["kv"]) == (8 * 2 * side, 9 * 2 * side)
    # a hidden row for each drafting sequence
    assert last_terms["step"] - first_terms["step"] == 8 * 5120 * 2


def test_a_model_without_a_draft_head_on_any_rank_does_not_speculate(shared):
    point = shared(pipeline=2)
    with pytest.raises(ConfigError, match="no draft head"):
        evaluate(replace(point, serve=replace(point.serve, speculative=True, num_drafts=1)))


def test_experts_are_split_and_all_else_stands_whole(big, cpu_set):
    circuit = circuit_of(published("35B-A3B"))
    whole = Planned(circuit, cpu_set, Select.all()).weights
    parallel = share_out(circuit, Ranks(expert=8), cpu_set, Select.all())
    experts = 41 * 256 * 3 * 512 * 2048 * 2  # 40 layers and the draft's
    assert parallel.stages[0].planned.weights == whole - experts * 7 // 8


def test_the_record_has_a_row_a_stage(shared):
    point = shared(tensor=2, pipeline=2)
    report = evaluate(point)
    record = to_record(report, shares=node_shares(rank_point(point, report), report))
    first, last = record["ranks"]
    assert (first["first"], first["last"], last["first"], last["last"]) == (0, 1, 2, 3)
    assert first["terms"]["kv"] == [first["terms"]["kv"][0]] * 2
    assert record["fullest"] == report.fullest
    stored = sum(node["stored"] for node in record["nodes"])
    assert stored == report.term("weights").low


@pytest.mark.parametrize("tensor", [1, 2, 4])
@pytest.mark.parametrize("pipeline", [1, 3])
def test_more_ranks_never_hold_more(big, cpu_set, tensor, pipeline):
    circuit = circuit_of(published("27B"))
    whole = replace(big, planned=Planned(circuit, cpu_set, Select.all()), slots=8)
    parallel = share_out(circuit, Ranks(tensor, pipeline), cpu_set, Select.all())
    report = evaluate(replace(whole, parallel=parallel, planned=parallel.stages[0].planned))
    alone = evaluate(whole)
    for rank in report.ranks:
        for term in rank.terms:
            if term.id != "collectives":
                assert term.high <= alone.term(term.id).high
