"""Which legs the invariance table has, and that each holds its rows against the right ones."""

from __future__ import annotations

import pytest

from metpipe.engine.promises import TRIED
from metpipe.stages.invariance.plan import Table, alone, changed, legs, needed_cases
from metpipe.stages.invariance.widths import widths_up_to

STEPS = 8


@pytest.fixture(scope="module")
def table():
    return Table.of(16, STEPS, 1000)


@pytest.fixture(scope="module")
def tokens(table):
    """Tokens that say whose they are: prompt p, step s is 1000 p + s."""
    return [[1000 * p + s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]


def test_every_rung_and_its_neighbours():
    assert widths_up_to(16) == (2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16)
    assert widths_up_to(128)[-5:] == (95, 96, 97, 127, 128)
    assert {23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65} <= set(widths_up_to(128))


def test_every_axis_is_tried(table, tokens):
    axes = {leg.axis for leg in legs(table, tokens)}
    assert axes == set(TRIED)


def test_a_row_of_a_batch_is_fed_its_prompts_own_tokens(table, tokens):
    for leg in legs(table, tokens):
        if leg.axis in ("width", "padding"):
            for step, fed in enumerate(leg.fed):
                assert fed == tuple(tokens[row][step] for row in range(leg.case.num_sequences))


def test_only_the_kept_row_is_compared_beside_other_neighbours(table, tokens):
    for leg in legs(table, tokens):
        if leg.axis == "neighbours":
            ((kept, _),) = leg.ends
            for row in range(leg.case.num_sequences):
                same = leg.case.prompts[row] == table.prompts[row]
                assert same == (row == kept)
            assert {prompt for prompt, _ in leg.rows} == {kept}
            assert all(fed[kept] == tokens[kept][step] for step, fed in enumerate(leg.fed))


def test_a_verify_row_is_the_decode_step_of_its_token(table, tokens):
    for leg in legs(table, tokens):
        if leg.axis != "verify":
            continue
        for prompt, point in leg.rows:
            step, row = point.theirs
            if step >= 0:
                assert leg.fed[step][row] == tokens[prompt][point.ours[0]]


@pytest.mark.parametrize("steps", [2, 5, 7, 8])
def test_a_verify_of_every_width_is_accepted_and_its_state_compared(steps):
    table = Table.of(2, steps, 1000)
    tokens = [[s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]
    accepting = [leg for leg in legs(table, tokens) if leg.name.endswith("all accepted")]
    assert [leg.case.widths for leg in accepting] == [(2,), (3,), (4,), (5,), (8,)]
    for leg in accepting:
        ((prompt, _),) = leg.ends
        fed = [token for step in leg.fed for token in step]
        assert fed == tokens[prompt]  # both end behind the same token
        assert alone(table, prompt).prompts == table.prompts[:1]
        assert len(fed) >= steps


def test_a_rejecting_verify_feeds_wrong_drafts(table, tokens):
    rejecting = [leg for leg in legs(table, tokens) if leg.name.endswith("all rejected")]
    assert [leg.case.widths for leg in rejecting] == [(2,), (3,), (4,), (5,), (8,)]
    deepest = tokens[-1]
    for leg in rejecting:
        assert set(leg.accepted) == {(0,)}
        for step, fed in enumerate(leg.fed):
            assert fed[0] == tokens[0][step]
            assert fed[1] == (deepest[step + 1] + 1) % 1000


def test_the_decoded_prompt_ends_where_the_prefilled_one_begins(table, tokens):
    (leg,) = (leg for leg in legs(table, tokens) if leg.axis == "prefill_decode")
    assert leg.case.prompts == (table.chunked[:1],)
    assert tuple(token for (token,) in leg.fed[: len(table.chunked) - 1]) == table.chunked[1:]
    prefill = leg.rows[0][1]
    assert (prefill.ours[0], prefill.theirs[0]) == (-1, len(table.chunked) - 2)


def test_the_tenant_is_longer_than_the_prompt_that_follows_it(table, tokens):
    (leg,) = (leg for leg in legs(table, tokens) if leg.case.tenant)
    assert len(leg.case.tenant) > len(leg.case.prompts[0]) + STEPS


def test_the_control_changes_one_token_half_way(table, tokens):
    leg = changed(table, tokens)
    plain = tuple((token,) for token in tokens[0])
    assert table.changed_step == STEPS // 2
    assert [step for step in range(STEPS) if leg.fed[step] != plain[step]] == [STEPS // 2]


def test_the_pools_are_sized_for_every_leg(table, tokens):
    cases = needed_cases(table)
    assert {leg.case.name for leg in legs(table, tokens)} <= {case.name for case in cases}
    assert alone(table, 0) in cases
