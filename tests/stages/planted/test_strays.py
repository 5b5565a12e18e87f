"""Writes into state that nobody owns, at the places where another sequence comes or goes."""

from __future__ import annotations

from typing import Any

import pytest

from metpipe.engine.forward import Forward
from metpipe.engine.runners import LegacyRunner
from metpipe.engine.spilling import restore
from metpipe.engine.state_digests import StateDigests
from metpipe.stages.modes import spill
from tests.stages.planted.hybrids import HYBRID
from tests.stages.planted.rig import after, diff, forward_that_runs, in_variant


def stray(forward: Forward) -> None:
    """Into the last block before the dummy, which no case of these owns."""
    first = (forward.model.sizes.num_blocks - 2) * forward.model.sizes.block_size
    forward.model.states["l0.attn.v"][first] = 3.0


def in_every_prefill(own: Any, forward: Forward, *arguments: Any, **named: Any) -> Any:
    logits_V = own(forward, *arguments, **named)
    stray(forward)
    return logits_V


MOVED = "bytes that no step owns moved (l0.attn.v)"


@pytest.mark.parametrize("state_check", ["ends", "step"])
def test_a_write_before_a_spill_is_not_forgiven_by_it(tmp_path, monkeypatch, state_check):
    in_variant(monkeypatch, "prefill", in_every_prefill)
    said = diff(tmp_path, "diff=swap", f"state_check={state_check}")
    assert said.outcome == "FAIL"
    at = ", first after step 0" if state_check == "step" else ""
    assert f"variant, swap, own record{at}, circuit: {MOVED}" in said.reasons


def test_a_write_while_a_prefix_is_computed_is_not_forgiven(tmp_path, monkeypatch):
    """Only the prefix strays: its tail, and every other prefill, is clean."""

    def in_prefixes(own: Any, forward: Forward, sequence: Any, tokens: Any, *rest: Any) -> Any:
        logits_V = own(forward, sequence, tokens, *rest)
        if len(tokens) == 256 and sequence.slot == 1:
            stray(forward)
        return logits_V

    in_variant(monkeypatch, "prefill", in_prefixes)
    said = diff(tmp_path, "prefill=[256]")
    assert said.outcome == "FAIL"
    assert f"variant, prefill, 256 tokens restored, 37 computed, circuit: {MOVED}" in said.reasons
    assert (
        len([reason for reason in said.reasons if MOVED in reason]) == 2
    )  # the control strays too


def test_a_write_in_a_leg_of_the_invariance_table_fails(tmp_path, monkeypatch):
    in_variant(monkeypatch, "prefill", in_every_prefill)
    said = diff(tmp_path, "diff=invariance", "max_width=2")
    assert said.outcome == "FAIL"
    assert f"invariance, alone 0, circuit: {MOVED}" in said.reasons
    assert f"invariance, K=2, accepting, circuit: {MOVED}" in said.reasons
    assert not [cell for cell in said.evidence.cells if cell.promised and not cell]


def test_a_repeat_that_ran_other_kernels_took_another_path(tmp_path, monkeypatch):
    """The same bits by another route: the reference launches one kernel more in its decode."""
    own, made = LegacyRunner.bind, []

    def bind(runner: LegacyRunner, mode: str, rows: int) -> Any:
        made.extend([runner] if runner not in made else [])
        bound = own(runner, mode, rows)
        if runner is made[0] and mode == "decode":
            object.__setattr__(bound, "kernels", (*bound.kernels, "embed.embed"))
        return bound

    monkeypatch.setattr(LegacyRunner, "bind", bind)
    said = diff(tmp_path)
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason == (
        "legacy-repeat 1, single: took another path, other kernels ran in decode 1"
    )


def test_a_spill_that_loses_the_draft_heads_cache_is_found(tmp_path, monkeypatch):
    running = forward_that_runs(monkeypatch)

    def without_drafts(model: Any, sequence: Any, record_B: Any) -> None:
        kept = {
            name: pool.clone()
            for name, pool in model.states.items()
            if model.circuit.states[name].section == "draft"
        }
        assert kept, "the model has a draft head"
        restore(model, sequence, record_B)
        if running() == "circuit":
            for name, pool in kept.items():
                model.states[name].copy_(pool)

    monkeypatch.setattr(spill, "restore", without_drafts)
    said = diff(tmp_path, "diff=swap", "mtp=auto", model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case("swap, own record")
    found = said.case("swap, own record, draft head")
    assert found.prefill_equal
    assert found.differences[0].step == 2
    assert found.differences[0].rows == (2,)  # rows 0 and 1 are the verify's, 2 is the draft's


def test_a_draft_head_that_writes_another_value_is_found_in_the_state_of_its_step(
    tmp_path, monkeypatch
):
    """After the draft's logits are out, so that no logits of this step can show it."""

    def propose(own: Any, forward: Forward, sequences: Any, tokens: Any, count: int) -> Any:
        found = own(forward, sequences, tokens, count)
        (sequence,) = sequences
        if sequence.draft_length < 2:
            return found  # behind the bootstrap: the first step's drafts read it
        at, size = sequence.draft_length - 1, forward.model.sizes.block_size
        row = sequence.blocks[at // size] * size + at % size
        for name, pool in forward.model.states.items():
            if forward.model.circuit.states[name].section == "draft":
                pool[row, 0] += 1.0
        return found

    in_variant(monkeypatch, "propose", propose)
    said = diff(tmp_path, "verify=[2]", "mtp=true", model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("verify, K=2, draft head")
    assert (found.state_steps[0].step, found.state_steps[0].sequences) == (0, (0,))
    assert 0 not in {d.step for d in found.differences}


@pytest.mark.parametrize("mode", ["diff=single", "verify=[2]", "batch=[4]"])
def test_a_state_updated_one_slot_too_far_is_seen_without_slots_to_spare(tmp_path, mode):
    """The slot behind is nobody's: its poison is not what any update of it leaves."""

    def behind(_: int, arguments: Any) -> None:
        arguments["h"][int(arguments["slots"].max()) + 1] *= 0.5

    fault = {"delta.recurrence_norm": after(behind)}
    said = diff(tmp_path, mode, variant=fault, model=HYBRID)
    assert said.outcome == "FAIL"
    assert any("bytes that no step owns moved (l0.gdn.h" in reason for reason in said.reasons)


@pytest.mark.parametrize("state_check", ["ends", "step"])
def test_a_row_written_ahead_of_its_time_is_seen_in_the_sequences_own_block(tmp_path, state_check):
    def two_ahead(_: int, arguments: Any) -> None:
        if len(arguments["positions"]) == 1:
            at, size = int(arguments["positions"][0]) + 2, arguments["block_size"]
            block = int(arguments["block_table"][0, at // size])
            arguments["v_pool"][block * size + at % size] = 3.0

    fault = {"fused.norm_rope_write": after(two_ahead)}
    said = diff(tmp_path, f"state_check={state_check}", variant=fault)
    assert said.outcome == "FAIL"
    first = ", first after step 0" if state_check == "step" else ""
    assert any(
        reason.startswith(f"variant, prompt 0{first}, circuit: bytes that no step owns moved (l0.")
        for reason in said.reasons
    )


def test_an_id_that_is_not_the_greatest_is_found_under_equal_logits(tmp_path):
    def next_id(_: int, arguments: Any) -> None:
        arguments["tokens"].add_(1)

    fault = {"head.argmax": after(next_id)}
    said = diff(tmp_path, variant=fault)
    assert said.outcome == "FAIL"
    found = said.case("prompt 0")
    assert not found.prefill_equal
    assert {d.unequal_bytes for d in found.differences} == {0}


def test_an_id_that_is_not_the_greatest_in_both_contradicts_the_reference(tmp_path):
    def next_id(_: int, arguments: Any) -> None:
        arguments["tokens"].add_(1)

    said = diff(tmp_path, everywhere={"head.argmax": after(next_id)})
    assert said.outcome == "FAIL"
    assert said.case("prompt 0")
    assert said.reasons[0] == (
        "legacy, prompt 0: the ids that it chose in the prefill are not those of its greatest "
        "logits."
    )


def test_digests_of_state_that_see_nothing_are_blind(tmp_path, monkeypatch):
    monkeypatch.setattr(StateDigests, "of", lambda self, one: {"state": "0"})
    monkeypatch.setattr(StateDigests, "written", lambda self, ones, counts: ("0",) * len(ones))
    said = diff(tmp_path)
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason.endswith("in no state (the states' comparison is blind)")


def test_a_rule_that_was_asked_for_and_never_used_is_not_shown(tmp_path):
    said = diff(tmp_path, "variants.circuit.rules=[norm_rope_write,shared_down_blend]")
    assert said.outcome == "INCONCLUSIVE"
    assert said.reason == (
        "circuit: no plan that ran used shared_down_blend of variants.circuit.rules, so nothing "
        "is shown of it."
    )


@pytest.mark.parametrize(("width", "kept"), [(3, 1), (3, 2), (5, 1), (5, 3)])
def test_a_commit_that_is_wrong_at_one_count_is_found_whichever_it_is(
    tmp_path, monkeypatch, width, kept
):
    def commit(own: Any, forward: Forward, sequence: Any, count: int) -> None:
        if count == kept:
            forward._verified.pop(sequence)
        else:
            own(forward, sequence, count)

    in_variant(monkeypatch, "commit", commit)
    said = diff(tmp_path, f"verify=[{width}]", "mtp=false", "steps=16", model=HYBRID)
    assert said.outcome == "FAIL"


def test_a_commit_that_drops_a_row_in_both_contradicts_plain_decode(tmp_path, monkeypatch):
    own = Forward.commit
    monkeypatch.setattr(
        Forward, "commit", lambda forward, one, kept: own(forward, one, max(kept - 1, 1))
    )
    said = diff(tmp_path, "verify=[3]", "mtp=false", model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("legacy, verify, K=3: step ")
    assert "drafts of its own plain decode" in said.reasons[0]
