"""Speculation: what is rejected must leave no trace, and no row may see what is behind it."""

from __future__ import annotations

from typing import Any

import torch

from metpipe.engine.forward import Forward
from tests.stages.planted.rig import Arguments, after, diff, flip, in_variant, rebound
from tests.stages.planted.row_faults import split_at


def test_a_verify_that_is_not_rewound_is_found_in_the_state_of_its_step(tmp_path, monkeypatch):
    in_variant(monkeypatch, "rewind", lambda own, forward, sequence, rejected: None)
    said = diff(tmp_path, "verify=[3]")
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith(
        "verify, K=3, circuit: prefill equal true, 2 of 4 steps differ (first at 2)"
    )
    found = said.case("verify, K=3")
    assert found.state_steps[0].step == 1  # the first step with a wrong draft
    assert found.state_steps[0].sequences == (0,)


def test_a_verify_that_is_rewound_too_little_is_found(tmp_path, monkeypatch):
    def one_less(own: Any, forward: Forward, sequence: Any, rejected: int) -> None:
        own(forward, sequence, rejected - 1)

    in_variant(monkeypatch, "rewind", one_less)
    said = diff(tmp_path, "verify_batch=[2]", "verify_batch_ks=[3]")
    assert said.outcome == "FAIL"
    found = said.case("verify_batch, K=3 3")
    # Sequence 1 has its wrong draft at even steps, sequence 0 at odd ones.
    assert [(d.step, d.sequences) for d in found.state_steps][:2] == [(0, (1,)), (1, (0, 1))]
    assert (found.differences[0].step, found.differences[0].rows) == (1, (3, 4, 5))


def test_a_rejected_draft_that_lingers_in_both_forwards_is_seen_by_its_control(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Forward, "rewind", lambda forward, sequence, rejected: None)
    said = diff(tmp_path, "verify=[3]")
    assert said.case("verify, K=3")  # both forwards are wrong alike
    assert said.outcome == "FAIL"
    moved = "a rejected draft moved step"
    assert any("rejected draft in row" in r and moved in r for r in said.reasons)
    assert said.control("rejected draft").verdict == "lingers"
    assert said.control("accepted draft").verdict == "ok"


def test_drafts_that_earlier_rows_see_are_found_by_their_control(tmp_path):
    def all_at_the_last(arguments: Arguments) -> Arguments | None:
        positions = arguments["positions"]
        return {"positions": positions.max().repeat(3)} if len(positions) == 3 else None

    fault = {"attention.paged_attention": rebound(all_at_the_last)}
    said = diff(tmp_path, "verify=[3]", everywhere=fault)
    assert said.case("verify, K=3")
    assert said.outcome == "FAIL"
    assert said.control("accepted draft").verdict == "early"
    assert any("row 0 of the step moved, before row" in reason for reason in said.reasons)


def test_a_verify_that_sums_in_another_order_is_found_at_its_width(tmp_path):
    said = diff(tmp_path, "verify=[2,3]", variant={"linear.qkv": split_at(3)})
    assert said.outcome == "FAIL"
    assert said.case("verify, K=2")
    assert said.case("verify, K=3").differences[0].step == 0
    assert said.case("verify, K=3").differences[0].rows == (0, 1, 2)
    assert said.localized[0]["rule"] == "qkv"
    assert "parts at step 0 (verify), first in l0.attn.q" in said.localized[0]["sentence"]


def test_a_verify_at_the_positions_of_the_step_before_is_found_at_the_second_step(tmp_path):
    seen: list[torch.Tensor] = []

    def stale(arguments: Arguments) -> Arguments | None:
        if len(arguments["positions"]) != 3:
            seen.clear()  # a prefill: another run begins
            return None
        layers = 2
        seen.append(arguments["positions"].clone())
        return {"positions": seen[-1 - layers]} if len(seen) > layers else None

    said = diff(tmp_path, "verify=[3]", variant={"fused.norm_rope_write": rebound(stale)})
    assert said.outcome == "FAIL"
    assert "3 of 4 steps differ (first at 1)" in said.reasons[0]


def test_a_sequence_that_attends_to_anothers_blocks_is_found(tmp_path):
    def swapped(arguments: Arguments) -> Arguments | None:
        table = arguments["block_table"]
        return {"block_table": table.roll(2, 0)} if len(table) == 4 else None

    run = ("verify_batch=[2]", "verify_batch_ks=[2]")
    said = diff(tmp_path, *run, variant={"attention.paged_attention": rebound(swapped)})
    assert said.outcome == "FAIL"
    found = said.case("verify_batch, K=2 2")
    assert found.prefill_equal
    assert (found.differences[0].step, found.differences[0].rows) == (0, (0, 1, 2, 3))


def test_a_verify_that_races_proves_nothing(tmp_path):
    def race(number: int, arguments: Arguments) -> None:
        if len(arguments["y"]) == 3 and number % 7 == 6:
            flip(arguments["y"])

    said = diff(tmp_path, "verify=[3]", everywhere={"activation.silu_mul": after(race)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.reasons[0].startswith("legacy-repeat 1, verify, K=3: does not equal itself; ")


def test_a_verify_that_never_rejects_proves_too_little(tmp_path, monkeypatch):
    from metpipe.stages.modes import verify

    def always_right(continuation: Any, committed: int, step: int, **sizes: Any) -> tuple[int, ...]:
        return tuple(continuation[committed + 1 : committed + sizes["width"]])

    monkeypatch.setattr(verify, "draft_tokens", always_right)
    said = diff(tmp_path, "verify=[3]")
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason == (
        "verify, K=3: 4 of 4 verifies accepted every draft; needs both full and partial accepts."
    )
