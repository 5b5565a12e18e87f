"""How large the pools of a run are, and what is refused before it starts."""

from __future__ import annotations

from typing import Any

import pytest

from metpipe.circuit import RuleSet
from metpipe.engine.pool_sizes import PoolSizes
from metpipe.engine.serve_flags import ExecutedServe
from metpipe.errors import ConfigError
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.needs import (
    check_fits,
    check_passes,
    check_rows,
    check_widths,
    one_sequence,
    sizes_for,
)
from tests.runs import composed

SERVE = ExecutedServe(block_size=16, max_seq_len=4096, max_prefill_tokens=8192)


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    """The CPU set's, which take up to 8,192 rows."""
    from metpipe.engine.kernel_sets import open_kernel_sets

    return open_kernel_sets("cpu", None).rules


def case(mode: str, lengths: tuple[int, ...], steps: int = 4, **facts: Any) -> Case:
    prompts = tuple(tuple(range(length)) for length in lengths)
    return Case(mode, "some case", prompts, steps, **facts)


def sizes(*cases: Case, slots: int | None = None) -> PoolSizes:
    return sizes_for(cases, SERVE, slots)


@pytest.mark.parametrize(
    ("found", "slots", "blocks", "runs", "snapshots"),
    [
        (case("single", (28,)), 1, 2, {"decode": 1, "prefill": 28}, 0),
        (case("single", (29,)), 1, 3, {"decode": 1, "prefill": 29}, 0),
        (
            case("batch", (12, 19, 26)),
            3,
            1 + 2 + 2,
            {"decode": 1, "multi_seq": 4, "prefill": 26},
            0,
        ),
        (
            case("batch", (12, 19, 26), fragmented=True),
            4,
            1 + 2 + 2 + 1,
            {"decode": 1, "multi_seq": 4, "prefill": 26},
            0,
        ),
        (
            case("batch", (12, 12, 12), padded=False),
            3,
            3,
            {"decode": 1, "multi_seq": 3, "prefill": 12},
            0,
        ),
        (
            case("verify", (23,), widths=(3,)),
            1,
            3,
            {"decode": 1, "prefill": 23, "verify": 3},
            2,
        ),
        (
            case("verify", (23,), widths=(3,), num_drafts=2, drafts_verified=True),
            1,
            3,
            {"decode": 1, "draft": 1, "prefill": 23, "verify": 3},
            2,
        ),
        (
            case("verify_batch", (12, 19, 26), widths=(4, 3, 2), num_drafts=3),
            3,
            3 + 3 + 3,
            {"decode": 1, "draft": 4, "multi_seq": 4, "prefill": 26, "verify_batch": 9},
            3 + 2 + 1,
        ),
        (case("prefill", (65,), 2, chunk=16), 1, 5, {"decode": 1, "prefill": 16}, 0),
        (
            case("prefill", (293,), 2, restored=256),
            2,
            19 + 16,
            {"decode": 1, "prefill": 293},
            0,
        ),
        (case("swap", (23,), spill=2), 2, 2 * 2, {"decode": 1, "prefill": 23}, 0),
        (case("single", (20,), held=3), 4, 2 + 3, {"decode": 1, "prefill": 20}, 0),
        (case("single", (20,), tenant=(1,) * 70), 1, 5, {"decode": 1, "prefill": 70}, 0),
    ],
    ids=[
        "a block's edge", "a token past it", "batch", "fragmented", "not padded", "verify",
        "draft head", "batched verify", "chunks", "restored prefix", "spilled", "held slots",
        "an earlier tenant",
    ],
)  # fmt: skip
def test_pools_of_one_case(found, slots, blocks, runs, snapshots):
    size = sizes(found)
    # One of each is nobody's, and the last block is the dummy.
    assert (size.num_slots, size.num_blocks) == (slots + 1, blocks + 1 + 1)
    assert dict(size.runs) == runs
    assert size.snapshot_rows == snapshots


def test_pools_of_a_run_hold_its_widest_case():
    size = sizes(case("batch", (12, 19)), case("verify", (23,), widths=(5,)), case("single", (90,)))
    assert dict(size.runs) == {"decode": 1, "multi_seq": 2, "prefill": 90, "verify": 5}
    assert (size.num_slots, size.num_blocks, size.snapshot_rows) == (2 + 1, 6 + 1 + 1, 4)


def test_slots_beyond_what_is_needed_are_all_allocated_and_all_have_blocks():
    size = sizes(case("single", (28,)), slots=5)
    assert (size.num_slots, size.num_blocks) == (5, 5 * 2 + 1)


@pytest.mark.parametrize(
    ("found", "slots", "said"),
    [
        (
            case("batch", (5,) * 6),
            4,
            "needs 6 state slots; set slots=6 .*; 4 slots hold 4 sequences",
        ),
        (
            case("batch", (5,) * 4, fragmented=True),
            4,
            "needs 5 state slots; .*; 4 slots hold 3 seq",
        ),
        (case("swap", (5,), spill=2), 1, "needs 2 state slots; .*; 1 slot holds no such case"),
        (case("prefill", (293,), restored=256), 1, "needs 2 state slots"),
    ],
    ids=["too wide", "no room for the gap", "no place to restore to", "nor for a prefix"],
)
def test_a_pool_that_is_too_small_is_refused_and_says_what_would_fit(found, slots, said):
    with pytest.raises(ConfigError, match=f"^slots={slots}: .*some case {said}"):
        check_fits([found], 4096, slots)
    check_fits([found], 4096, None)


@pytest.mark.parametrize(
    "found",
    [
        case("single", (30,), 5),
        case("verify", (20,), 5, widths=(3,)),
        case("batch", (2, 30), 5),
    ],
    ids=["decode", "every row of a verify", "the longest of a batch"],
)
def test_a_length_past_the_longest_sequence_is_refused(found):
    longest = max(found.reserved)
    check_fits([found], longest, None)
    with pytest.raises(ConfigError, match=rf"^serve\.max_seq_len={longest - 1}: .*{longest} tok"):
        check_fits([found], longest - 1, None)


def test_every_mode_with_its_default_list_fits_the_default_serve():
    from metpipe.engine.kernel_sets import open_kernel_sets
    from metpipe.stages.live import Live
    from metpipe.stages.refusals import check

    live = Live(composed("pipeline=diff", "diff=all"), open_kernel_sets("cpu", None))
    check(live)
    assert live.sizes().num_slots >= 16 + 1


@pytest.mark.parametrize(
    ("key", "found", "said"),
    [
        (
            "batch",
            (8192, 8193),
            r"^batch: 8,193 sequences are 8,193 rows .*: up to 8,192 sequences",
        ),
        ("verify_batch", (4097,), "^verify_batch: 4,097 sequences are 8,194 rows .* 4,096 seq"),
    ],
)
def test_more_sequences_than_a_step_has_rows_are_refused_before_their_prompts_are_made(
    rules, key, found, said
):
    check_widths({key: [min(found) - 1]}, rules)
    with pytest.raises(ConfigError, match=said):
        check_widths({key: found}, rules)


def test_a_step_wider_than_every_rule_names_its_case(rules):
    check_rows([case("verify_batch", (1,) * 2, widths=(4096, 4096))], 8192, rules)
    with pytest.raises(ConfigError, match=r"^verify_batch: some case has steps of 8,193 rows"):
        check_rows([case("verify_batch", (1,) * 2, widths=(4096, 4097))], 8192, rules)
    with pytest.raises(ConfigError, match=r"^serve.max_prefill_tokens: .* set .*=8192"):
        check_rows([case("single", (1,))], 8193, rules)


def test_a_chunk_that_is_no_single_pass_is_refused():
    found = [case("prefill", (90,), chunk=64), case("prefill", (90,)), case("invariance", (60,))]
    check_passes(found, 64)
    with pytest.raises(ConfigError, match=r"=63: prefill, some case prefills 64 tokens in one p"):
        check_passes(found, 63)
    with pytest.raises(ConfigError, match=r"invariance, some case prefills 60 tokens"):
        check_passes(found[1:], 59)


def test_pools_of_one_sequence_are_those_of_its_prompt():
    sizes_of_one = one_sequence(28, SERVE)
    assert (sizes_of_one.num_slots, sizes_of_one.num_blocks) == (1, 2 + 1)
    assert dict(sizes_of_one.runs) == {"decode": 1, "prefill": 28}
    assert one_sequence(9000, SERVE).max_prefill_rows == 8192
