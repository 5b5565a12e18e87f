"""What drafts brought, worked by hand."""

from __future__ import annotations

import pytest

from metpipe.diff.acceptance import acceptance_of
from metpipe.diff.trace import Trace


def trace(step_ms, *, accepted=(), draft_ms=()):
    steps = len(step_ms)
    return Trace(
        prompts=((1,),),
        fed=((5,),) * steps,
        prefill_digests=("a",),
        step_digests=(("b",),) * steps,
        step_states=(("c",),) * steps,
        state_digests={},
        enqueue_ms=(0.0,) * steps,
        step_ms=step_ms,
        accepted=tuple((count,) for count in accepted),
        draft_ms=draft_ms,
    )


def test_rate_places_and_cost():
    drafted = trace((99.0, 3.0, 5.0, 4.0), accepted=(2, 0, 1, 2), draft_ms=(99.0, 1.0, 1.0, 2.0))
    found = acceptance_of(drafted, 3, plain=trace((50.0, 4.0, 4.0)))
    assert (found.drafted, found.accepted, found.rate) == (8, 5, 5 / 8)
    assert found.by_place == (3 / 4, 2 / 4)
    assert found.tokens_per_step == (5 + 4) / 4
    # steps 1..3: 3 + 5 + 4 and 1 + 1 + 2 ms for 1 + 2 + 3 tokens
    assert found.ms_per_token == pytest.approx(16 / 6)
    assert found.plain_ms_per_token == 4.0
    assert found.speedup == pytest.approx(1.5)


def test_a_single_step_is_not_timed():
    found = acceptance_of(trace((9.0,), accepted=(1,), draft_ms=(1.0,)), 2, trace((9.0,)))
    assert found.ms_per_token is None
    assert found.speedup is None
