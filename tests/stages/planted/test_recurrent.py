"""Recurrent states: the wrong slot, a slot that is not fresh, a draft that is not taken back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from metpipe.engine import spilling
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.stages.modes import spill
from tests.stages.planted.hybrids import HYBRID
from tests.stages.planted.rig import (
    Arguments,
    diff,
    forward_that_runs,
    in_variant,
    rebound,
)

Commit = Callable[[Any, Forward, Any, int], None]


@pytest.mark.parametrize(
    ("kernel", "state"), [("conv.conv_l2_norm", "conv"), ("delta.recurrence_norm", "h")]
)
def test_a_padding_row_that_writes_a_neighbours_slot_is_found_in_that_state(
    tmp_path, kernel, state
):
    def last_slot(arguments: Arguments) -> Arguments:
        slots, dummy = arguments["slots"], len(arguments[state]) - 1
        return {"slots": slots.masked_fill(slots == dummy, dummy - 2)}

    said = diff(tmp_path, "batch=[3]", variant={kernel: rebound(last_slot)}, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("batch, width 3")
    # A padding row comes last, so that its write is seen by the next step's logits.
    assert (found.state_steps[0].step, found.state_steps[0].sequences) == (0, (2,))
    assert (found.differences[0].step, found.differences[0].rows) == (1, (2,))
    assert {label.split(",")[0] for label in found.state_diff} == {"sequence 2"}
    assert said.localized[0]["sentence"].endswith(
        f"on its own the rule {kernel.partition('.')[2]} moves bits"
    )


def test_slots_taken_for_adjacent_are_found_where_they_have_a_gap(tmp_path):
    def adjacent(arguments: Arguments) -> Arguments:
        slots, dummy = arguments["slots"], len(arguments["h"]) - 1
        rows = torch.arange(len(slots), dtype=torch.int32)
        if slots.unique().numel() == 1:  # one sequence's
            return {}
        return {"slots": torch.where(slots == dummy, slots, slots[0] + rows)}

    fault = {"delta.recurrence_norm": rebound(adjacent)}
    near = diff(tmp_path / "near", "batch=[3]", variant=fault, model=HYBRID)
    assert (near.outcome, near.reasons) == ("PASS", [])
    apart = ("batch=[3]", "fragment_slots=true")
    said = diff(tmp_path / "apart", *apart, variant=fault, model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case("batch, width 3, fragmented").differences[0].rows == (1, 2)


def test_a_slot_that_is_not_zeroed_is_found_in_the_prefill(tmp_path, monkeypatch):
    running, own = forward_that_runs(monkeypatch), Model.zero_slot

    def zero_slot(model: Model, slot: int) -> None:
        if running() == "legacy":
            own(model, slot)

    monkeypatch.setattr(Model, "zero_slot", zero_slot)
    said = diff(tmp_path, model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("prompt 0, circuit: prefill equal false")


def test_a_slot_that_is_zeroed_once_is_found_where_it_is_used_again(tmp_path, monkeypatch):
    own = Model.zero_slot

    def if_never_used(model: Model, slot: int) -> None:
        if any(model.states[name][slot].isnan().any() for name in model.snapshots):
            own(model, slot)

    monkeypatch.setattr(Model, "zero_slot", if_never_used)
    said = diff(tmp_path, "diff=invariance", "max_width=2", model=HYBRID)
    assert said.outcome == "FAIL"
    assert {(cell.axis, cell.step) for cell in said.evidence.cells if not cell} == {("slot", -1)}
    assert (
        "slot, a fresh slot against one that 150 tokens were in: differs before the first"
        in (said.reasons[0])
    )


def nothing(own: Any, forward: Forward, sequence: Any, kept: int) -> None:
    """The state stays as it is after every row."""
    forward._verified.pop(sequence)


def one_row_more(own: Any, forward: Forward, sequence: Any, kept: int) -> None:
    """The state after the first rejected draft."""
    own(forward, sequence, min(kept + 1, forward._verified[sequence].width))


def all_but_the_window(own: Any, forward: Forward, sequence: Any, kept: int) -> None:
    """The convolutions' windows are not taken back."""
    states = forward.model.states
    windows = {
        name: states[name][sequence.slot].clone()
        for name in forward.model.snapshots
        if name.endswith("conv")
    }
    own(forward, sequence, kept)
    for name, window in windows.items():
        states[name][sequence.slot] = window


@pytest.mark.parametrize("fault", [nothing, one_row_more, all_but_the_window])
def test_a_draft_that_is_not_taken_back_is_found_in_the_state_of_its_step(
    tmp_path, monkeypatch, fault
):
    in_variant(monkeypatch, "commit", fault)
    said = diff(tmp_path, "verify=[3]", model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("verify, K=3")
    assert found.prefill_equal
    assert found.state_steps[0].step == 1  # the first step with a wrong draft
    assert (found.differences[0].step, found.differences[0].rows) == (2, (0, 1, 2))
    assert any(label.startswith("l0.gdn.") for label in found.state_diff)


def everywhere(monkeypatch: Any, fault: Commit) -> None:
    """Commit by `fault` in both forwards."""
    own = Forward.commit
    monkeypatch.setattr(
        Forward, "commit", lambda forward, sequence, kept: fault(own, forward, sequence, kept)
    )


@pytest.mark.parametrize("fault", [nothing, one_row_more])
@pytest.mark.parametrize("mode", ["verify", "verify_batch"])
def test_a_draft_that_lingers_in_both_forwards_is_seen_by_its_control(
    tmp_path, monkeypatch, fault, mode
):
    everywhere(monkeypatch, fault)
    run = ("verify=[3]",) if mode == "verify" else ("verify_batch=[2]", "verify_batch_ks=[3]")
    said = diff(tmp_path, *run, model=HYBRID)
    assert all(case.comparison for case in said.evidence.cases)  # both forwards are wrong alike
    assert said.outcome == "FAIL"
    assert said.control("rejected draft").verdict == "lingers"
    assert "a rejected draft moved step" in "\n".join(said.reasons)
    # What lingers also moves the drafts that the reference itself accepts.
    assert said.reasons[0].endswith("the kernel set promises that a verify's rows equal it.")


def test_an_accepted_draft_that_is_left_out_of_both_is_seen_by_the_table(tmp_path, monkeypatch):
    def one_row_less(own: Any, forward: Forward, sequence: Any, kept: int) -> None:
        own(forward, sequence, max(kept - 1, 1))

    everywhere(monkeypatch, one_row_less)
    said = diff(tmp_path, "diff=invariance", "max_width=2", "mtp=false", model=HYBRID)
    assert said.outcome == "FAIL"
    broken = [cell for cell in said.evidence.cells if not cell]
    assert {cell.axis for cell in broken} == {"verify"}
    assert all("all accepted" in cell.name for cell in broken)
    assert {cell.step for cell in broken if "K=2" in cell.name} == {1}


def test_a_state_taken_from_the_step_before_is_found(tmp_path, monkeypatch):
    kept: list[dict[str, torch.Tensor]] = []

    def stale(own: Any, forward: Forward, sequence: Any, count: int) -> None:
        snapshots = forward.model.snapshots
        kept.append({name: pool.clone() for name, pool in snapshots.items()})
        for name, pool in snapshots.items():
            pool.copy_(kept[max(len(kept) - 2, 0)][name])
        own(forward, sequence, count)

    in_variant(monkeypatch, "commit", stale)
    said = diff(tmp_path, "verify=[3]", model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case("verify, K=3").state_steps[0].step == 1
    assert said.case("verify, K=3").first_mismatch == 2


def test_a_verify_in_anothers_slot_is_found_in_both(tmp_path):
    def swapped(arguments: Arguments) -> Arguments | None:
        slots = arguments["slots"]
        return {"slots": slots.roll(2)} if len(slots) == 4 else None

    run = ("verify_batch=[2]", "verify_batch_ks=[2]")
    fault = {"delta.recurrence_norm": rebound(swapped)}
    said = diff(tmp_path, *run, variant=fault, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("verify_batch, K=2 2")
    assert found.prefill_equal
    assert (found.differences[0].step, found.differences[0].rows) == (0, (0, 1, 2, 3))
    assert (found.state_steps[0].step, found.state_steps[0].sequences) == (0, (0, 1))


def test_a_state_restored_into_the_slot_that_it_came_from_is_found(tmp_path, monkeypatch):
    running = forward_that_runs(monkeypatch)

    def restore(model: Model, sequence: Any, record_B: torch.Tensor) -> None:
        spilling.restore(model, sequence, record_B)
        if running() == "circuit":
            for name in model.snapshots:
                model.states[name][0] = model.states[name][sequence.slot]
                model.states[name][sequence.slot] = 0.0

    monkeypatch.setattr(spill, "restore", restore)
    said = diff(tmp_path, "diff=swap", model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("swap, own record")
    assert [d.step for d in found.differences] == [2, 3]
    assert any("bytes that no step owns moved (l0.gdn.h, " in reason for reason in said.reasons)
