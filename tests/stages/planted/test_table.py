"""Faults that every forward has alike, and that the invariance table alone can see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from metpipe.engine.forward import Forward
from tests.stages.planted.hybrids import EXPERTS, HYBRID
from tests.stages.planted.rig import Arguments, Fault, Said, after, diff, flip
from tests.stages.planted.row_faults import in_both

DRAFTS = "verify, K=3, draft head"


def table(tmp_path: Any, *overrides: str, **faults: Any) -> Said:
    """The table of a model with a draft head, as narrow as it may be."""
    return diff(
        tmp_path, "diff=invariance", "max_width=2", *overrides, **{"model": HYBRID} | faults
    )


def broken(said: Said, variant: str = "circuit") -> dict[str, set[str]]:
    """Axis -> names of its cells that do not hold."""
    cells = [cell for cell in said.evidence.cells if cell.variant == variant and not cell]
    return {
        axis: {cell.name for cell in cells if cell.axis == axis}
        for axis in {cell.axis for cell in cells}
    }


@pytest.mark.parametrize("model", [HYBRID, EXPERTS], ids=["dense", "experts"])
def test_without_a_fault_every_cell_holds(tmp_path, model):
    said = table(tmp_path, model=model)
    assert (said.outcome, said.reasons) == ("PASS", [])
    assert {cell.axis for cell in said.evidence.cells} >= {"verify", "prefill_chunks", "draft"}


@pytest.mark.parametrize("line", [("mtp=false",), ("model=tiny_dense",)])
def test_drafts_are_tried_where_there_is_a_head_that_is_asked_for(tmp_path, line):
    model = HYBRID if line == ("mtp=false",) else {}
    said = table(tmp_path, *line, model=model)
    assert said.outcome == "PASS"
    assert "draft" not in {cell.axis for cell in said.evidence.cells}


def never_trimmed(monkeypatch: Any) -> None:
    monkeypatch.setattr(Forward, "trim", lambda forward, sequence, length: None)


def row_0_saved(monkeypatch: Any) -> None:
    own = Forward.save_hidden
    monkeypatch.setattr(
        Forward, "save_hidden", lambda forward, rows: own(forward, [0] * len(list(rows)))
    )


def test_a_cache_of_drafts_that_no_forward_trims_is_seen(tmp_path, monkeypatch):
    never_trimmed(monkeypatch)
    said = diff(tmp_path / "verify", "verify=[3]", "mtp=true", "steps=8", model=HYBRID)
    assert said.case(DRAFTS)  # every forward is wrong alike
    said = table(tmp_path / "table")
    assert said.outcome == "FAIL"
    assert said.reasons[0].startswith("legacy, draft, drafts behind rejecting verifies against ")
    for variant in ("legacy", "circuit"):
        assert broken(said, variant) == {
            "draft": {
                "drafts behind rejecting verifies against accepting ones of K=2",
                "drafts behind rejecting verifies against accepting ones of K=3",
                "the only draft against the first of 2, K=2, all rejected",
                "the only draft against the first of 3, K=3, all rejected",
                "two drafts against two of three, K=2, all accepted",
            }
        }


def test_a_hidden_row_that_every_forward_takes_from_the_first_token_is_seen(tmp_path, monkeypatch):
    row_0_saved(monkeypatch)
    said = diff(tmp_path / "verify", "verify=[3]", "mtp=true", "steps=8", model=HYBRID)
    assert said.case(DRAFTS)
    said = table(tmp_path / "table")
    assert said.outcome == "FAIL"
    for variant in ("legacy", "circuit"):
        assert broken(said, variant) == {
            "draft": {
                "drafts behind rejecting verifies against accepting ones of K=2",
                "drafts behind rejecting verifies against accepting ones of K=3",
                "drafts of one sequence alone against those among 2",  # the last one's
            }
        }


def wrong_beside_others(_: int, arguments: Arguments) -> None:
    if len(arguments["y"]) > 1:
        flip(arguments["y"])


def test_a_kernel_of_the_head_that_is_wrong_beside_other_rows_is_seen_and_placed(tmp_path):
    said = table(tmp_path, everywhere={"split.concat": after(wrong_beside_others)})
    assert said.outcome == "FAIL"
    name = "drafts of one sequence alone against those among 2"
    for variant in ("legacy", "circuit"):
        assert broken(said, variant) == {"draft": {name}}
    (cell,) = [cell for cell in said.evidence.cells if cell.variant == "circuit" and not cell]
    assert (cell.step, cell.row) == (-1, 4)  # behind two prompts and two bootstraps
    (found,) = said.localized
    assert (found["mode"], found["op"], found["step"]) == ("invariance", "concat", -1)


def test_a_draft_whose_id_hangs_on_the_rows_is_seen_in_the_next_one(tmp_path, monkeypatch):
    own = Forward.propose

    def propose(forward: Forward, sequences: Any, tokens: Any, count: int) -> Any:
        if len(sequences) == 1 or count == 1:
            return own(forward, sequences, tokens, count)
        first, logits_1SV = own(forward, sequences, tokens, 1)
        others = [(token + 1) % forward.model.vocab_size for (token,) in first.tolist()]
        second, logits_2SV = own(forward, sequences, others, count - 1)
        return torch.cat((first, second), 1), torch.cat((logits_1SV, logits_2SV))

    monkeypatch.setattr(Forward, "propose", propose)
    said = table(tmp_path)
    assert said.outcome == "FAIL"
    assert broken(said) == {"draft": {"drafts of one sequence alone against those among 2"}}


def test_a_head_that_looks_at_nothing_is_blind(tmp_path, monkeypatch):
    own = Forward.propose

    def propose(forward: Forward, *arguments: Any) -> Any:
        ids_SC, logits_CSV = own(forward, *arguments)
        return torch.zeros_like(ids_SC), torch.ones_like(logits_CSV)

    monkeypatch.setattr(Forward, "propose", propose)
    said = table(tmp_path)
    assert said.outcome == "INCONCLUSIVE"
    assert not broken(said)
    assert said.control("a draft comes behind").verdict == "blind"


def racing(rows: int) -> Fault:
    """An embedding that in steps of so many rows is another one at each launch."""
    launched = 0

    def race(_: int, arguments: Arguments) -> None:
        nonlocal launched
        if len(arguments["y"]) == rows:
            launched += 1
            arguments["y"][0, 0] += float(launched)

    return after(race)


@pytest.mark.parametrize(
    ("rows", "overrides", "again"),
    [
        (8, (), "K=8, accepting, once more"),
        (4, ("max_width=3",), "width 3, once more"),
        (4, (), "drafts, 2 sequences, once more"),
    ],
)
def test_a_race_in_one_kind_of_step_is_no_failure_but_no_ground(tmp_path, rows, overrides, again):
    said = table(tmp_path, *overrides, everywhere={"embed.embed": racing(rows)})
    assert said.outcome == "INCONCLUSIVE"
    found = [repeat for repeat in said.evidence.repeats if not repeat]
    assert again in {repeat.name for repeat in found}
    assert "alone, once more" not in {repeat.name for repeat in found}
    assert any(f"repeat, {again}: differs " in reason for reason in said.reasons)


def test_the_table_repeats_as_often_as_the_run_says(tmp_path):
    said = table(tmp_path, "repeat=2", "mtp=false")
    names = [repeat.name for repeat in said.evidence.repeats if repeat.variant == "circuit"]
    ran = ("alone", "width 2", "K=8, accepting")
    assert names == [f"{name}, {times}" for name in ran for times in ("once more", "once more (2)")]


def test_rows_that_are_wrong_at_every_width_break_no_padding(tmp_path):
    def beside_others(_: int, arguments: Arguments) -> None:
        if 1 < len(arguments["y"]) <= 4:
            flip(arguments["y"])

    fault = in_both(beside_others)
    said = diff(tmp_path, "diff=invariance", "max_width=3", everywhere=fault)
    assert said.outcome == "FAIL"
    for variant in ("legacy", "circuit"):
        assert len(broken(said, variant)["width"]) == 2
        assert "padding" not in broken(said, variant)
    assert [cell.name for cell in said.evidence.cells if cell.axis == "padding"] == [
        "padded against exactly 3 rows"
    ] * 2
