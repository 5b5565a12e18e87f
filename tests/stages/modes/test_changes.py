"""What the detection controls change, and where it must be seen."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from metpipe.diff.controls import PREFILL
from metpipe.diff.trace import Trace
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.changes import changes

VOCAB = 100


def state(layer: int, local: str, section: str = "main") -> Any:
    name = f"l{layer}.{local}"
    return SimpleNamespace(id=name, local=local, section=section, kind="paged_kv")


STATES = [state(0, "gdn.h"), state(1, "attn.k"), state(2, "gdn.h"), state(0, "attn.k", "draft")]


def trace(fed: Any, accepted: Any = (), prompts: Any = ((1, 2, 3),)) -> Trace:
    nothing = tuple(() for _ in fed)
    return Trace(prompts, fed, (), nothing, nothing, {}, nothing, nothing, accepted)  # type: ignore[arg-type]


def test_one_sequence_gets_another_token_half_way():
    case = Case("single", "prompt 0", ((1, 2, 3),), 5)
    (change,) = changes(case, trace(((7,), (8,), (99,), (9,), (6,))), VOCAB, STATES)
    assert (change.name, change.step, change.row) == ("token changed", 2, 0)
    assert change.script.fed == ((7,), (8,), (0,), (9,), (6,))
    assert (change.case, change.recovers, change.flip) == (case, False, None)


@pytest.mark.parametrize(("width", "row"), [(2, 1), (3, 1), (8, 4)])
def test_a_batch_gets_another_token_in_its_middle_row(width, row):
    case = Case("batch", "width", ((1,),) * width, 4)
    before = tuple(tuple(range(10, 10 + width)) for _ in range(4))
    (change,) = changes(case, trace(before, prompts=case.prompts), VOCAB, STATES)
    assert (change.name, change.step, change.row) == (f"token of row {row} changed", 2, row)
    moved = [
        (step, at)
        for step in range(4)
        for at in range(width)
        if change.script.fed[step][at] != before[step][at]
    ]
    assert moved == [(2, row)]


def test_a_prefill_gets_another_token_in_the_middle_of_its_prompt():
    case = Case("prefill", "5 tokens", ((10, 11, 99, 13, 14),), 2, chunk=2)
    (change,) = changes(case, trace(((1,), (2,))), VOCAB, STATES)
    assert change.case.prompts == ((10, 11, 0, 13, 14),)
    assert (change.case.chunk, change.step, change.row) == (2, PREFILL, 0)
    assert change.script.fed == ((1,), (2,))


def test_a_spilled_record_gets_another_byte_in_each_kind_of_state():
    """Of the last layer that has it; the head's only where the head runs, and in its row."""
    case = Case("swap", "own record", ((1,),), 6, spill=3)
    found = changes(case, trace(((1,),) * 6), VOCAB, STATES)
    assert [(change.flip, change.step, change.row) for change in found] == [
        ("l2.gdn.h", 3, 0), ("l1.attn.k", 3, 0),
    ]  # fmt: skip
    case = replace(case, widths=(2,), num_drafts=1, drafts_verified=True)
    *_, draft = changes(case, trace(((1, 2),) * 6), VOCAB, STATES)
    assert (draft.flip, draft.row, draft.name) == (
        "l0.attn.k", 2, "draft attn.k of the record changed",
    )  # fmt: skip


def verify(widths: tuple[int, ...], accepted: tuple[tuple[int, ...], ...]) -> Any:
    """The changes of a verify that accepted so many drafts, by step and sequence."""
    rows = sum(widths)
    fed = tuple(tuple(range(10 * step, 10 * step + rows)) for step in range(len(accepted)))
    case = Case("verify_batch", "K", ((1,),) * len(widths), len(accepted), widths=widths)
    return changes(case, trace(fed, accepted, case.prompts), VOCAB, STATES)


def test_a_verify_changes_an_accepted_draft_and_a_rejected_one():
    """K=3: the last accepted draft of a step near half way, and the first rejected of another."""
    accepted, rejected = verify((3,), ((2,), (1,), (2,), (0,)))
    assert (accepted.step, accepted.row, accepted.recovers) == (2, 2, False)
    assert (rejected.step, rejected.row, rejected.recovers) == (1, 2, True)
    assert accepted.name == "accepted draft in row 2 changed"
    assert rejected.name == "rejected draft in row 2 changed"
    assert accepted.script.fed[2] == (20, 21, 23)
    assert rejected.script.fed[1] == (10, 11, 13)


def test_a_batched_verify_changes_drafts_of_its_middle_sequence():
    accepted, rejected = verify((4, 3, 2), ((3, 2, 1), (3, 1, 0)))
    assert (accepted.step, accepted.row) == (1, 4 + 1)
    assert (rejected.step, rejected.row) == (1, 4 + 2)


def test_the_row_after_the_last_accepted_draft_is_none_of_the_rejected():
    """One of two drafts accepted: row 1 is its, row 2 is the rejected one's."""
    accepted, rejected = verify((3,), ((1,), (1,)))
    assert (accepted.row, rejected.row) == (1, 2)


@pytest.mark.parametrize(
    ("accepted", "names"),
    [
        (((2,), (2,)), ["accepted draft in row 2 changed"]),
        (((0,), (0,)), ["rejected draft in row 1 changed"]),
    ],
    ids=["nothing rejected", "nothing accepted"],
)
def test_what_never_happened_has_no_control(accepted, names):
    assert [change.name for change in verify((3,), accepted)] == names


def test_a_middle_that_never_accepted_gives_the_control_to_its_neighbour():
    """Sequence 1 rejects always, 0 and 2 accept always: each control finds one that has it."""
    accepted, rejected = verify((3, 3, 3), ((2, 0, 2), (2, 0, 2)))
    assert (accepted.step, accepted.row) == (1, 0 + 2)  # of sequence 0, as near as 2 and before it
    assert (rejected.step, rejected.row) == (1, 3 + 1)
