"""The legs of drafts: both sides of every pair come behind the same tokens, from the same cache."""

from __future__ import annotations

import pytest

from metpipe.stages.invariance.drafts import COMMITTED, draft_bases, draft_changed, drafts
from metpipe.stages.invariance.table import Table, alone

VOCAB = 1000


def tried(steps=8, limit=16):
    """A table, its bases by name and its legs, each prompt's tokens telling whose they are."""
    table = Table.of(limit, steps, VOCAB, drafts=True)
    tokens = [[50 * p + s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]
    found = {base.case.name: base for base in draft_bases(table, tokens)}
    return tokens, found, list(drafts(table, tokens))


def committed(leg, step, sequence):
    """What a sequence was fed for good, the bootstrap's token first, and what comes behind."""
    count = leg.case.num_sequences
    found = [leg.drafted[sequence]]
    for at in range(step + 1):
        first = sum(leg.case.widths[:sequence])
        found += leg.fed[at][first : first + 1 + leg.accepted[at][sequence]]
    if step + 1 < leg.case.steps:
        return (*found, leg.fed[step + 1][sum(leg.case.widths[:sequence])])
    return (*found, leg.following[sequence] if step >= 0 else leg.drafted[count + sequence])


def cached(leg, steps):
    """Entries that each proposal leaves in the head's cache: what a verify trims it to."""
    if not leg.case.drafts_verified:
        return [0] * steps
    kept = [accepted[0] + 1 for accepted in leg.accepted[:steps]]
    return [min(count, leg.case.num_drafts) for count in kept]


def place(case, row, step):
    """Which draft, of which sequence, a row is."""
    count = case.num_sequences
    return divmod(row - (2 * count if step < 0 else sum(case.widths)), count)


@pytest.mark.parametrize("steps", [1, 4, 8])
def test_both_sides_come_behind_the_same_tokens_and_cache(steps):
    _, bases, legs = tried(steps)
    for leg in legs:
        for key, point in leg.rows:
            base, (ours, row), (theirs, other) = bases[key], point.ours, point.theirs
            draft, sequence = place(leg.case, other, theirs)
            assert place(base.case, row, ours) == (draft, 0)
            assert base.case.prompts == (leg.case.prompts[sequence],)
            assert committed(base, ours, 0) == committed(leg, theirs, sequence)
            assert sum(cached(base, ours + 1)) == sum(cached(leg, theirs + 1))
            assert other < (leg.case.rows.prefill if theirs < 0 else leg.case.rows.step)


def test_every_leg_compares_drafts_behind_all_of_its_steps_but_none_of_another_draft():
    _, bases, legs = tried()
    for leg in legs:
        assert {point.theirs[0] for _, point in leg.rows} == set(range(-1, leg.case.steps))
        assert sum(1 + count for count in leg.accepted[0][:1]) * leg.case.steps == COMMITTED
        assert len(leg.rows) == len({(key, point.theirs) for key, point in leg.rows})
        assert leg.against <= set(bases)


def test_accepting_ways_are_fed_right_drafts_and_rejecting_ones_wrong():
    _, bases, legs = tried()
    for leg in (*bases.values(), *legs):
        for step, accepted in enumerate(leg.accepted):
            width = leg.case.widths[0]
            assert set(accepted) in ({0}, {width - 1})
            wrong = 0 if accepted[0] else 1
            for sequence in range(leg.case.num_sequences):
                first, *others = leg.fed[step][sequence * width : (sequence + 1) * width]
                assert others == [first + row + wrong for row in range(1, width)]


def test_some_way_must_trim_and_no_base_has_to():
    _, bases, legs = tried()
    for base in bases.values():
        trims = base.case.num_drafts - cached(base, 1)[0]
        assert trims == (0 if base.case.drafts_verified else base.case.num_drafts)
    trimmed = [leg.case.num_drafts - cached(leg, 1)[0] for leg in legs if leg.case.drafts_verified]
    assert sorted(set(trimmed)) == [0, 1, 2]


def test_states_at_the_end_are_compared_where_both_caches_end_alike():
    _, bases, legs = tried()
    for leg in legs:
        same = [base for key, base in bases.items() if key in leg.against]
        expected = leg.case.num_drafts == same[0].case.num_drafts
        assert bool(leg.ends) == expected


def test_a_batch_has_the_first_prompts_drafts_in_its_last_row():
    _, bases, legs = tried()
    batches = [leg for leg in legs if leg.case.num_sequences > 1]
    assert [leg.case.num_sequences for leg in batches] == [2, 5, 16]
    for leg in batches:
        assert {sequence for _, _, sequence in leg.ends} == {0, leg.case.num_sequences - 1}
        first = next(base for base in bases.values() if "prompt 0" in base.case.name)
        assert leg.case.prompts[-1:] == first.case.prompts


def test_the_control_changes_one_token_that_a_draft_comes_behind():
    table = Table.of(2, 8, VOCAB, drafts=True)
    tokens = [[50 * p + s for s in range(alone(table, p).steps)] for p in range(table.num_alone)]
    leg = draft_changed(table, tokens)
    bases = {base.case.name: base for base in draft_bases(table, tokens)}
    (base,) = (bases[key] for key in leg.against)
    others = [step for step in range(base.case.steps) if base.fed[step] != leg.fed[step]]
    assert others == [leg.changed_step + 1]  # fed to the head behind the step before
    seen = [point for _, point in leg.rows if point.theirs[0] == leg.changed_step]
    assert [point.ours for point in seen] == [point.theirs for point in seen]


def test_no_more_sequences_than_may_speculate():
    _, _, legs = tried(limit=128)
    assert max(leg.case.num_sequences for leg in legs) == 32
