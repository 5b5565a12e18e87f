"""Which legs the invariance table has, and that each holds its rows against the right ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import LADDER
from metpipe.engine.promises import OF_A_HEAD, TRIED
from metpipe.stages.invariance.plan import MAKERS, bases, controls, legs, needed_cases
from metpipe.stages.invariance.table import Table, alone
from metpipe.stages.invariance.widths import widths_up_to

STEPS = 8


@pytest.fixture(scope="module")
def table():
    return Table.of(16, STEPS, 1000, drafts=True)


@pytest.fixture(scope="module")
def tokens(table):
    """Tokens that say whose they are: prompt p, step s is 1000 p + s."""
    return [[1000 * p + s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]


@pytest.fixture(scope="module")
def index_of(table):
    """The name of a prompt alone -> its index."""
    return {alone(table, index).name: index for index in range(table.num_alone)}


def test_every_rung_and_its_neighbours():
    assert widths_up_to(16) == (2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 15, 16)
    assert widths_up_to(128)[-5:] == (95, 96, 97, 127, 128)
    assert {23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65} <= set(widths_up_to(128))


def test_every_axis_is_tried(table, tokens):
    axes = {leg.axis for leg in legs(table, tokens)}
    assert axes == set(TRIED) == set(MAKERS)


def test_without_a_head_all_but_its_axis(table, tokens):
    plain = replace(table, drafts=False)
    assert {leg.axis for leg in legs(plain, tokens)} == set(TRIED) - set(OF_A_HEAD)
    assert bases(plain, tokens) == ()


def test_what_a_leg_is_held_against_ran_before_it(table, tokens, index_of):
    planned = [*bases(table, tokens), *controls(table, tokens), *legs(table, tokens)]
    names = [leg.case.name for leg in planned]
    assert len(set(names)) == len(names)  # sides are kept by name
    assert index_of.keys().isdisjoint(names)
    for number, leg in enumerate(planned):
        assert leg.against <= {*index_of, *names[:number]}
        assert bool(leg.against) == bool(leg.axis or leg.changed_step is not None)


def test_a_padded_width_is_held_against_the_batch_that_ran_just_before(table, tokens):
    planned = list(legs(table, tokens))
    paddings = [number for number, leg in enumerate(planned) if leg.axis == "padding"]
    assert [planned[number].case.num_sequences for number in paddings] == [
        width for width in widths_up_to(16) if width not in LADDER
    ]
    for number in paddings:
        padded, exact = planned[number - 1], planned[number]
        assert exact.against == {padded.case.name}
        assert (padded.axis, padded.case.prompts) == ("width", exact.case.prompts)
        assert (padded.case.padded, exact.case.padded) == (True, False)
        assert padded.fed == exact.fed


def test_the_widest_the_deepest_and_one_of_drafts_run_once_more(table, tokens):
    again = {leg.axis: leg.case for leg in legs(table, tokens) if leg.again}
    assert set(again) == {"width", "verify", "draft"}
    assert again["width"].num_sequences == again["draft"].num_sequences == 16
    assert again["verify"].widths == (8,)


def test_a_restored_prefix_is_held_against_the_whole_prompt(table, tokens):
    (leg,) = [leg for leg in legs(table, tokens) if leg.case.restored]
    assert leg.axis == "prefill_chunks"
    assert (leg.case.prompts, leg.case.restored) == ((table.chunked,), 64)


def test_a_row_of_a_batch_is_fed_its_prompts_own_tokens(table, tokens):
    for leg in legs(table, tokens):
        if leg.axis in ("width", "padding"):
            for step, fed in enumerate(leg.fed):
                assert fed == tuple(tokens[row][step] for row in range(leg.case.num_sequences))


def test_only_the_kept_row_is_compared_beside_other_neighbours(table, tokens):
    for leg in legs(table, tokens):
        if leg.axis == "neighbours":
            ((_, _, kept),) = leg.ends
            for row in range(leg.case.num_sequences):
                same = leg.case.prompts[row] == table.prompts[row]
                assert same == (row == kept)
            assert {key for key, _ in leg.rows} == {f"alone {kept}"}
            assert all(fed[kept] == tokens[kept][step] for step, fed in enumerate(leg.fed))


def test_a_verify_row_is_the_decode_step_of_its_token(table, tokens, index_of):
    for leg in legs(table, tokens):
        if leg.axis != "verify":
            continue
        for key, point in leg.rows:
            step, row = point.theirs
            if step >= 0:
                assert leg.fed[step][row] == tokens[index_of[key]][point.ours[0]]


@pytest.mark.parametrize("steps", [2, 5, 7, 8])
def test_a_verify_of_every_width_is_accepted_and_its_state_compared(steps):
    table = Table.of(2, steps, 1000, drafts=False)
    tokens = [[s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]
    accepting = [leg for leg in legs(table, tokens) if leg.name.endswith("all accepted")]
    assert [leg.case.widths for leg in accepting] == [(2,), (3,), (4,), (5,), (8,)]
    for leg in accepting:
        ((key, _, _),) = leg.ends
        prompt = next(p for p in range(table.num_alone) if alone(table, p).name == key)
        fed = [token for step in leg.fed for token in step]
        assert fed == tokens[prompt]  # both end behind the same token
        assert alone(table, prompt).prompts == table.prompts[:1]
        assert len(fed) >= steps


def test_a_rejecting_verify_feeds_wrong_drafts(table, tokens):
    verifies = [leg for leg in legs(table, tokens) if leg.axis == "verify"]
    rejecting = [leg for leg in verifies if leg.name.endswith("all rejected")]
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
    leg, drafted = controls(table, tokens)
    assert drafted.case.num_drafts
    assert controls(replace(table, drafts=False), tokens) == (leg,)
    plain = tuple((token,) for token in tokens[0])
    assert table.changed_step == leg.changed_step == STEPS // 2
    assert [step for step in range(STEPS) if leg.fed[step] != plain[step]] == [STEPS // 2]


def test_the_pools_are_sized_for_every_leg(table, tokens):
    cases = needed_cases(table)
    planned = (*bases(table, tokens), *controls(table, tokens), *legs(table, tokens))
    assert {leg.case.name for leg in planned} <= {case.name for case in cases}
    assert alone(table, 0) in cases
