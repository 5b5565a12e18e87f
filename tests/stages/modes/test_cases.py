"""The cases of each mode as a table, and what a case says of its rows."""

from __future__ import annotations

from typing import Any

import pytest

from metpipe.diff.logits_file import Rows
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.cases import Facts, cases_of
from tests.runs import composed

PROMPTS = (tuple(range(70, 93)), tuple(range(70, 134)))
VOCAB = 1000


def cases(mode: str, *overrides: str, drafts: bool = False) -> tuple[Case, ...]:
    run = composed("pipeline=diff", *overrides)
    return cases_of(mode, run, Facts(PROMPTS, VOCAB, drafts))


def facts(case: Case) -> dict[str, Any]:
    """What differs from a plain case of one row a step."""
    plain = Case(case.mode, case.name, case.prompts, case.steps)
    names = [name for name in Case.__slots__ if getattr(case, name) != getattr(plain, name)]
    return {name: getattr(case, name) for name in names}


HEAD = {"num_drafts": 1, "drafts_verified": True}


@pytest.mark.parametrize(
    ("mode", "overrides", "drafts", "expected"),
    [
        ("single", (), False, {"prompt 0": {}, "prompt 1": {}}),
        ("batch", ("batch=[2,5]",), False, {"width 2": {}, "width 5": {}}),
        (
            "batch",
            ("batch=3", "fragment_slots=true"),
            False,
            {"width 3, fragmented": {"fragmented": True}},
        ),
        ("verify", ("verify=[2,4]",), False, {"K=2": {"widths": (2,)}, "K=4": {"widths": (4,)}}),
        (
            "verify",
            ("verify=2", "mtp=auto"),
            True,
            {
                "plain decode": {},
                "K=2": {"widths": (2,)},
                "K=2, draft head": {"widths": (2,), **HEAD},
            },
        ),
        (
            "verify_batch",
            ("verify_batch=3", "verify_batch_ks=[2,3]"),
            False,
            {
                "K=3 3 3": {"widths": (3, 3, 3)},
                "K=2 2 2": {"widths": (2, 2, 2)},
                "K=3 3 2": {"widths": (3, 3, 2)},
            },
        ),
        (
            "verify_batch",
            ("verify_batch=3", "verify_batch_ks=[2,3]", "ragged=false"),
            True,
            {
                "K=3 3 3": {"widths": (3, 3, 3), "num_drafts": 2},
                "K=2 2 2": {"widths": (2, 2, 2), "num_drafts": 2},
            },
        ),
        (
            "verify_batch",
            ("verify_batch=10", "verify_batch_ks=[2,4]"),
            False,
            {
                "K=10 sequences, 4x8 2x2": {"widths": (4,) * 8 + (2,) * 2},
                "K=10 sequences, 2x10": {"widths": (2,) * 10},
                "K=10 sequences, 4x5 2x5": {"widths": (4,) * 5 + (2,) * 5},
            },
        ),
        (
            "prefill",
            ("prefill=[1,17]", "prefill_chunk=[4,16]"),
            False,
            {
                "1 token": {},
                "17 tokens": {},
                "17 tokens in chunks of 4": {"chunk": 4},
                "17 tokens in chunks of 16": {"chunk": 16},
            },
        ),
        (
            "prefill",
            ("prefill=[16,17]", "prefill_chunk=4", "serve.max_prefill_tokens=16"),
            False,
            {
                "16 tokens": {},
                "16 tokens in chunks of 4": {"chunk": 4},
                "17 tokens in chunks of 16": {"chunk": 16},
                "17 tokens in chunks of 4": {"chunk": 4},
            },
        ),
        (
            "verify_batch",
            ("verify_batch=10", "verify_batch_ks=4", "serve.num_drafts=3", "serve.mtp_max_seqs=10"),
            False,
            {"K=10 sequences, 4x8 2x2": {"widths": (4,) * 8 + (2,) * 2}},
        ),
        (
            "swap",
            ("diff=swap", "steps=5"),
            True,
            {
                "own record": {"spill": 2},
                "own record, draft head": {"spill": 2, "widths": (2,), **HEAD},
                "the reference's record": {"spill": 2, "crossing": True},
                "the reference's record, draft head": {
                    "spill": 2,
                    "crossing": True,
                    "widths": (2,),
                    **HEAD,
                },
            },
        ),
        (
            "prefill",
            ("prefill=256",),
            False,
            {"256 tokens": {}, "256 tokens restored, 37 computed": {"restored": 256}},
        ),
        (
            "swap",
            ("diff=swap", "steps=5"),
            False,
            {
                "own record": {"spill": 2},
                "the reference's record": {"spill": 2, "crossing": True},
            },
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_cases_of_a_mode(mode, overrides, drafts, expected):
    found = cases(mode, *overrides, drafts=drafts)
    assert {case.name: facts(case) for case in found} == expected
    assert len(found) == len(expected)
    assert {case.mode for case in found} == {mode}


def test_capping_may_leave_one_shape_of_two():
    """Above eight sequences a slot has one draft, so K=3 and K=4 differ in the first eight only."""
    found = cases("verify_batch", "verify_batch=[2]", "verify_batch_ks=[4]")
    assert [case.widths for case in found] == [(4, 4)]
    deep = cases("verify_batch", "verify_batch=12", "verify_batch_ks=[2,3]")
    assert [case.widths for case in deep] == [(3,) * 8 + (2,) * 4, (2,) * 12, (3,) * 6 + (2,) * 6]


def test_with_every_mode_both_layouts_of_slots_run():
    for mode in ("batch", "verify_batch"):
        found = cases(mode, "diff=all")
        assert {case.fragmented for case in found} == {False, True}
        assert len(found) == 2 * len({case.name.removesuffix(", fragmented") for case in found})


def test_prompts_of_a_batch_have_their_own_lengths_and_a_prefill_its_own_prompt():
    (batch,) = cases("batch", "batch=[18]")
    assert [len(prompt) for prompt in batch.prompts] == [12 + 7 * (i % 16) for i in range(18)]
    alone, restored = cases("prefill", "prefill=256")
    assert restored.prompts[0][:256] == alone.prompts[0]
    assert len(restored.prompts[0]) == 256 + 37
    (verify,) = cases("verify", "verify=2")
    assert verify.prompts == PROMPTS[:1]


def case(mode: str = "batch", **changes: Any) -> Case:
    facts: dict[str, Any] = {"prompts": ((1, 2, 3), (4,), (5, 6)), "steps": 4}
    return Case(mode, "some case", **facts | changes)


@pytest.mark.parametrize(
    ("found", "rows", "reserved"),
    [
        (case("single", prompts=((1, 2),)), Rows(4, 1, 1), (6,)),
        (case(), Rows(4, 3, 3), (7, 5, 6)),
        (case("verify", prompts=((1,),), widths=(3,)), Rows(4, 1, 3), (15,)),
        (
            case("verify", prompts=((1,),), widths=(3,), num_drafts=2, drafts_verified=True),
            Rows(4, 4, 5),
            (17,),
        ),
        (case("verify_batch", widths=(4, 3, 2)), Rows(4, 3, 9), (21, 19, 20)),
        (case("verify_batch", widths=(4, 3, 2), num_drafts=3), Rows(4, 15, 18), (24, 22, 23)),
    ],
    ids=["single", "batch", "verify", "verify with drafts", "ragged", "ragged with drafts"],
)
def test_rows_of_logits_and_room_of_a_case(found, rows, reserved):
    assert found.rows == rows
    assert found.reserved == reserved


@pytest.mark.parametrize(
    ("found", "owners"),
    [
        (case(), [0, 1, 2]),
        (case("verify", prompts=((1,),), widths=(3,)), [0, 0, 0]),
        (case("verify_batch", widths=(3, 1, 2)), [0, 0, 0, 1, 2, 2]),
        (
            case("verify_batch", widths=(3, 1, 2), num_drafts=2),
            [0, 0, 0, 1, 2, 2] + [0, 1, 2] * 2,
        ),
    ],
    ids=["batch", "verify", "ragged", "drafts lie draft by draft"],
)
def test_a_row_is_owned_by_its_sequence(found, owners):
    assert [found.owner_of(row) for row in range(found.rows.step)] == owners


def test_plain_decoding_does_not_name_its_mode():
    assert case("single", prompts=((1,),)).full_name == "some case"
    assert case("swap").full_name == "swap, some case"
