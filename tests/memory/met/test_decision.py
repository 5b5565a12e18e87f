"""Expert tables: built where a full serve has room, skipped where it has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.memory import evaluate
from metpipe.memory.met.decision import decided

from .points import MIB, RECIPE_35B_NVFP4, RECIPE_122B, devices, point_of

LARGE = "qwen3_5_122b_a10b_nvfp4"


def test_tables_are_built_where_they_fit():
    decision = point_of("qwen3_6_35b_a3b_nvfp4", RECIPE_35B_NVFP4).met.decision
    assert decision.builds
    assert decision.tables > 16 << 30
    assert round(decision.tables / MIB) == 17348
    assert decision.headroom_with // MIB == 24636
    assert decision.headroom_without is None
    assert (decision.isl, decision.osl, decision.concurrency) == (262143, 1, 8)


def test_tables_are_skipped_where_they_do_not_and_the_rest_does():
    point = point_of(LARGE, RECIPE_122B)
    decision = point.met.decision
    assert not decision.builds
    assert round(decision.tables / MIB) == 62451
    assert round(decision.headroom_with / MIB) == -43643
    assert decision.headroom_without // MIB == 18808
    rules = {copy.rule for node in point.met.weights.nodes for copy in node.derived}
    assert "moe-nvfp4-expert-twin" not in rules
    report = evaluate(replace(point, workload=replace(point.workload, isl=16383)))
    assert report.term("copies").low / MIB == pytest.approx(1277.438, abs=0.001)
    # Documented as 101336, so that engine counts 0.11 to 0.30 MiB more. Of all terms only the
    # experts' FP8 scratch is deduced, and known to 0.01 % of the arena: 0.36 MiB.
    spare = report.headroom_low + 1026 * 196_608 - 101_336 * 196_608
    assert 0.11 < (spare - 196_608) / MIB < spare / MIB < 0.36 < 1.01e-4 * 3613.27
    assert report.pool.blocks_needed == 1026


@pytest.mark.parametrize("choice", ["qwen3_6_35b_a3b_fp8", "qwen3_8_27b_nvfp4", "qwen3_8b"])
def test_no_decision_where_no_rule_makes_a_table(choice):
    assert point_of(choice, {}).met.decision is None


def test_the_first_engine_always_built_them():
    point = point_of(LARGE, RECIPE_122B, number=1)
    assert point.met.decision is None
    assert evaluate(point).answer == "does not fit"


@pytest.mark.parametrize(
    "what_ifs", [{"tree_nodes": 64}, {"capture_rows": 10**7}, {"prompt_lookup": True}]
)
def test_what_ifs_never_change_it(what_ifs):
    plain = point_of(LARGE, RECIPE_122B).met.decision
    assert point_of(LARGE, RECIPE_122B, **what_ifs).met.decision == plain
    slots = decided(replace(point_of(LARGE, RECIPE_122B), slots=64, met=undecided()))
    assert slots.met.decision == plain


def undecided():
    """A side whose tables are still to be decided."""
    point = point_of(LARGE, RECIPE_122B, device="gb300")
    assert point.met.decision.builds
    return replace(point.met, decision=None)


def test_a_range_counts_by_what_is_certain():
    """With the law of gb10 as the upper end, the tables must fit whatever the driver takes."""
    point = point_of(LARGE, RECIPE_122B)
    with_tables = replace(point, met=undecided())
    needed = evaluate(replace(with_tables, workload=replace(point.workload, isl=16383)))
    for spare, builds in ((-(64 << 30), False), (64 << 30, True)):
        device = replace(
            devices().by_id["b200"], memory_bytes=int((needed.total_high + spare) / 0.85)
        )
        assert decided(replace(with_tables, device=device)).met.decision.builds is builds
