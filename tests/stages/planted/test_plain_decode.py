"""Plain decoding: faults of one step, of a race, of a write that nobody owns."""

from __future__ import annotations

import pytest
import torch

from metpipe.stages import compare as compare_stage
from tests.stages.planted.rig import Arguments, after, diff, flip, rebound

RUN = ("variant=all", "steps=6", "prompts=2", "slots=2")


def test_without_a_fault_the_diff_passes(tmp_path):
    said = diff(tmp_path, *RUN)
    assert (said.outcome, said.reasons) == ("PASS", [])


def test_a_racing_reference_proves_nothing(tmp_path):
    def race(number: int, arguments: Arguments) -> None:
        if number % 29 == 28:
            flip(arguments["y"])

    said = diff(tmp_path, *RUN, everywhere={"activation.silu_mul": after(race)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.reasons[0].startswith("legacy-repeat 1, prompt 0: does not equal itself; ")


def test_a_wrong_fused_kernel_is_found_at_its_step(tmp_path):
    # Two adds a layer; the last one of a prefill is not fused, since the head reads one row of it.
    prefill, step = 3, 4

    def wrong(number: int, arguments: Arguments) -> None:
        if number == prefill + 3 * step:
            flip(arguments["total"])

    said = diff(tmp_path, *RUN, variant={"norm.add_rms_norm": after(wrong)})
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("prompt 0, circuit: prefill equal true")
    assert said.case("prompt 0").first_mismatch == 3
    assert said.case("prompt 1")
    assert said.case("prompt 0", "circuit_reference")


def neighbours_write(arguments: Arguments) -> None:
    """Flip a bit in the last block before the dummy: nobody's, under these prompts."""
    pool = arguments["v_pool"]
    flip(pool[pool.shape[0] - 2 * arguments["block_size"] :])


def test_a_write_into_a_block_that_nobody_owns_fails(tmp_path):
    def once(number: int, arguments: Arguments) -> None:
        if number == 5:
            neighbours_write(arguments)

    said = diff(tmp_path, *RUN, variant={"fused.norm_rope_write": after(once)})
    assert said.outcome == "FAIL"
    assert "prompt 0, circuit: bytes that no step owns moved (l1.attn.v)" in said.reason


@pytest.mark.parametrize(("check", "outcome"), [("ends", "PASS"), ("step", "FAIL")])
def test_a_write_that_is_undone_is_seen_where_each_step_is_checked(tmp_path, check, outcome):
    def there_and_back(number: int, arguments: Arguments) -> None:
        if number in (5, 9):
            neighbours_write(arguments)

    fault = {"fused.norm_rope_write": after(there_and_back)}
    said = diff(tmp_path, *RUN, f"state_check={check}", variant=fault)
    assert said.outcome == outcome
    if check == "step":
        assert "first after step 1, circuit: bytes that no step owns" in said.reason


def test_a_forward_that_does_not_read_its_token_is_blind(tmp_path):
    def frozen(arguments: Arguments) -> Arguments:
        return {"token_ids": arguments["token_ids"].clone().fill_(70)}

    said = diff(tmp_path, *RUN, everywhere={"embed.embed": rebound(frozen)})
    assert said.outcome == "INCONCLUSIVE"
    assert said.control("token changed").verdict == "blind"
    assert said.control("token changed").sentence in said.reasons


def test_a_state_that_differs_under_equal_logits_fails(tmp_path):
    def last_step(number: int, arguments: Arguments) -> None:
        row = int(arguments["block_table"][0, 0]) * arguments["block_size"]
        if number == 3 + 5 * 2:  # the last layer of the first prompt's last step
            arguments["k_pool"].view(torch.int16)[row, 0] ^= 1

    said = diff(tmp_path, *RUN, variant={"fused.norm_rope_write": after(last_step)})
    assert said.outcome == "FAIL"
    assert "1 of 4 states differ (first l1.attn.k)" in said.reason
    assert said.case("prompt 0").first_mismatch is None


def test_a_broken_comparer_proves_nothing(tmp_path, monkeypatch):
    from metpipe.diff import self_test
    from metpipe.diff.comparer import Comparer

    class Blind(Comparer):
        """Compares the reference with itself."""

        def step(self, index, reference, run):
            return super().step(index, reference, reference.clone())

    monkeypatch.setattr(
        compare_stage,
        "run_self_test",
        lambda **facts: self_test.run_self_test(Blind, **facts),
    )
    said = diff(tmp_path, *RUN)
    assert said.outcome == "INCONCLUSIVE"
    assert "self-test failed" in said.reasons[0]
