"""The short way to an answer: the same as the whole report's, without planning anything."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from metpipe.circuit import Select
from metpipe.memory import Planned, Workload, evaluate, max_concurrency, max_isl, node_shares
from metpipe.memory.evaluate import answer_at, headroom_at
from metpipe.memory.kernel_set import Family, Workspace

from .points import RECIPE_27B, planned_of, point_of

SERVE = RECIPE_27B | {"max_batch_size": 32, "ssm_cache_slots": 64}


@pytest.fixture
def unplanned(monkeypatch):
    """A point whose model must not be planned."""
    point = point_of("qwen3_8_27b_nvfp4", SERVE, (1000, 24, 4))

    def refuse(*_):
        raise AssertionError("an answer needs no plan where the arena is charged")

    monkeypatch.setattr(Planned, "sizes", refuse)
    return point


def test_an_answer_and_the_inverse_queries_plan_nothing(unplanned):
    assert answer_at(unplanned) == "fits"
    assert max_concurrency(unplanned).surely == 32
    assert max_isl(unplanned).surely > 1000
    with pytest.raises(AssertionError, match="needs no plan"):
        evaluate(unplanned)


def test_an_answer_is_the_reports():
    draw = random.Random(3)
    point = point_of("qwen3_8_27b_nvfp4", SERVE)
    answers = set()
    for _ in range(60):
        load = Workload(draw.randint(1, 30000), draw.randint(1, 2000), draw.randint(1, 32))
        memory = draw.randint(100, 135) << 30
        one = replace(point, workload=load, device=replace(point.device, memory_bytes=memory))
        report = evaluate(one)
        assert answer_at(one) == report.answer
        assert headroom_at(one) == (report.headroom_low, report.headroom_high)
        answers.add(report.answer)
    assert answers == {"fits", "does not fit"}


def test_a_legacy_arena_leaves_only_the_buffers_that_it_does_not_hold():
    """n*hidden*4 and sm_count*1000 lie in the arena, 2000 bytes; n*hidden/32*4 does not: 32."""
    point, planned = point_of("qwen3_8b", {}, (4, 1, 4)), planned_of("qwen3_8b")
    held = Workspace("partials", ("n*64*4", "sm_count*1000"), in_arena=True)
    own = Workspace("scales", ("n*64/32*4",))
    kernel_set = replace(
        planned.kernel_set, families=(Family("linear", frozenset({"linear.linear"}), (held, own)),)
    )
    both = replace(
        point,
        planned=Planned(planned.circuit, kernel_set, Select.reference()),
        device=replace(point.device, sm_count=2),
    )
    report = evaluate(both)
    assert {space.name: space.bytes for space in report.counts.workspaces} == {
        "partials": 2000, "scales": 32
    }  # fmt: skip
    assert report.term("workspace").low == 32


def test_a_set_with_workspaces_outside_the_arena_is_planned_for_them():
    """Such a buffer is charged; one that the arena holds is shown only."""
    point = point_of("qwen3_8b", {}, (4, 1, 4))
    planned = planned_of("qwen3_8b")
    spaces = (Workspace("own", ("n*32",)), Workspace("held", ("sm_count*1000",), in_arena=True))
    family = Family("linear", frozenset({"linear.linear"}), spaces)
    kernel_set = replace(planned.kernel_set, families=(family,))
    both = replace(point, planned=Planned(planned.circuit, kernel_set, Select.reference()))
    report = evaluate(both)
    assert {space.name: space.bytes for space in report.counts.workspaces} == {
        "own": 4 * 32, "held": 48 * 1000
    }  # fmt: skip
    assert report.term("workspace").low == 4 * 32
    shares = {share.node: share.workspace for share in node_shares(both, report)}
    assert shares["l0.attn.q"] == 48 * 1000
    assert shares["l0.attn.attend"] == 0
    assert headroom_at(both) == (report.headroom_low, report.headroom_high)
