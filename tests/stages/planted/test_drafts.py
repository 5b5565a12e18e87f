"""The draft head: a wrong draft, a cache that is not trimmed, a hidden row of another token."""

from __future__ import annotations

from typing import Any

from metpipe.engine.forward import Forward
from tests.stages.planted.hybrids import HYBRID
from tests.stages.planted.rig import Arguments, after, diff, flip, in_variant

VERIFY = ("verify=[3]", "mtp=true", "steps=8")
BATCH = ("verify_batch=[2]", "verify_batch_ks=[3]", "mtp=true", "steps=3")
CASE = "verify, K=3, draft head"


def test_without_a_fault_the_draft_head_passes(tmp_path):
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert (said.outcome, said.reasons) == ("PASS", [])


def second_draft_wrong(own: Any, forward: Forward, *arguments: Any) -> Any:
    """The logits of the second draft are, and no token is another for it."""
    ids_SC, logits_CSV = own(forward, *arguments)
    flip(logits_CSV[1])
    return ids_SC, logits_CSV


def test_a_head_that_is_wrong_in_its_second_draft_is_found_in_that_row(tmp_path, monkeypatch):
    in_variant(monkeypatch, "propose", second_draft_wrong)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case(CASE)
    # Before the first step: prefill, bootstrap, two drafts; in a step: three rows, two drafts.
    assert found.prefill is not None
    assert found.prefill.rows == (3,)
    assert [d.rows for d in found.differences] == [(4,)] * 8
    assert not found.state_diff


def test_in_a_batch_it_is_found_in_the_second_draft_of_its_sequence(tmp_path, monkeypatch):
    in_variant(monkeypatch, "propose", second_draft_wrong)
    said = diff(tmp_path, *BATCH, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case("verify_batch, K=3 3")
    assert [d.rows for d in found.differences] == [(8,)] * 3  # six rows, then draft by draft


def test_a_kernel_of_the_head_alone_is_found_in_drafts_alone(tmp_path):
    def wrong(_: int, arguments: Arguments) -> None:
        flip(arguments["y"])

    said = diff(tmp_path, *VERIFY, variant={"split.concat": after(wrong)}, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case(CASE)
    assert found.prefill is not None
    assert found.prefill.rows == (2, 3)
    assert {d.rows for d in found.differences} == {(3, 4)}
    assert said.localized[0]["op"] == "concat"


def test_a_draft_that_is_not_the_greatest_of_its_logits_is_found_by_its_id(tmp_path, monkeypatch):
    def one_further(own: Any, forward: Forward, *arguments: Any) -> Any:
        ids_SC, logits_CSV = own(forward, *arguments)
        ids_SC[:, 1] += 1
        return ids_SC, logits_CSV

    in_variant(monkeypatch, "propose", one_further)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    assert "ids are " in said.reasons[0]
    assert said.case(CASE).prefill is not None
    assert said.case(CASE).prefill.rows == ()


def test_a_cache_of_drafts_that_is_not_trimmed_is_found(tmp_path, monkeypatch):
    in_variant(monkeypatch, "trim", lambda own, forward, sequence, length: None)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    found = said.case(CASE)
    assert found.prefill_equal
    assert found.differences[0].rows == (3, 4)  # the target's rows are replayed, and equal
    assert found.state_diff == ("draft.attn.k", "draft.attn.v")


def test_drafts_behind_the_hidden_row_of_another_token_are_found(tmp_path, monkeypatch):
    def the_first_row(own: Any, forward: Forward, rows: Any) -> None:
        own(forward, [0] * len(list(rows)))

    in_variant(monkeypatch, "save_hidden", the_first_row)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case(CASE).prefill_equal
    assert set(said.case(CASE).differences[0].rows) <= {3, 4}


def test_hidden_rows_that_are_never_saved_are_found_at_the_bootstrap(tmp_path, monkeypatch):
    in_variant(monkeypatch, "save_hidden", lambda own, forward, rows: None)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case(CASE).prefill is not None
    assert said.case(CASE).prefill.rows == (2, 3)


def test_drafts_that_start_from_no_hidden_row_are_found(tmp_path, monkeypatch):
    def from_zeros(own: Any, forward: Forward, *arguments: Any) -> Any:
        assert forward.model.drafter_hidden_SD is not None
        forward.model.drafter_hidden_SD.zero_()
        return own(forward, *arguments)

    in_variant(monkeypatch, "propose", from_zeros)
    said = diff(tmp_path, *VERIFY, model=HYBRID)
    assert said.outcome == "FAIL"
    assert said.case(CASE).prefill is not None
    assert said.case(CASE).prefill.rows == (2, 3)
