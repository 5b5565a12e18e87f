"""What a person sees of the modes: a row a case, where it differs, what the controls come to."""

from __future__ import annotations

import pytest

from metpipe.report.diff_section import DiffSection, StateDifference
from metpipe.report.schema import Report
from metpipe.report.shown_case import ShownCase, shown_cases
from tests.report import case_examples as modes
from tests.report import examples
from tests.report.test_console import line_with, shown


def lines_of(diff: DiffSection, width: int = 120) -> list[str]:
    return shown(examples.report(diff=diff, memory=None, ledger=None, oracle=None), width)


@pytest.mark.parametrize(
    ("start", "row"),
    [
        ("width 3,", "width 3, fragmented 12-26 0, 2-3 8.00 equal 8.20 equal 5.00"),
        ("K=3  ", "K=3 23 full 2, partial 2 8.00 equal 8.20 equal 5.00"),
        ("K=3 2", "K=3 2 12-19 full 4, partial 2 0-1 8.00 equal 8.20 equal 5.00"),
        ("65 tokens", "65 tokens in chunks of 16 8.00 equal 8.20 equal 5.00"),
        ("the reference's", "the reference's record 23 8.00 equal 8.20 equal 5.00"),
    ],
)
def test_each_case_is_one_row_under_its_mode(start, row):
    (found,) = [line for line in lines_of(modes.good()) if line.startswith(start)]
    assert " ".join(found.split()) == row


def test_a_row_has_the_columns_that_its_mode_needs():
    headers = [line.split() for line in lines_of(modes.good()) if line.startswith("case")]
    forwards = ["legacy", "circuit-reference", "circuit"]
    assert headers == [
        ["case", "tokens", "slots", *forwards],
        ["case", "tokens", "accepts", *forwards],
        ["case", "tokens", "accepts", "slots", *forwards],
        ["case", *forwards],
        ["case", "tokens", *forwards],
    ]


def test_lengths_that_all_cases_share_stand_in_the_title():
    lines = lines_of(modes.modes(modes.case("verify", "K=2"), modes.case("verify", "K=3")))
    assert line_with(lines, "verify: one sequence, K rows a step, 23 tokens (ms of a step)")
    assert line_with(lines, "case ").split()[:2] == ["case", "legacy"]


def test_plain_decoding_alone_needs_no_table_of_its_cases():
    lines = shown(examples.report())
    assert not [line for line in lines if line.startswith("case")]
    beside = modes.modes(modes.case("swap", "own record"), prompts=examples.diff().prompts)
    assert line_with(lines_of(beside), "single: one sequence")
    assert line_with(lines_of(beside), "prompt 2").split()[:3] == ["prompt", "2", "105"]


def test_the_forwards_are_counted_over_all_cases():
    lines = lines_of(modes.bad())
    assert line_with(lines, "Diff, all: 6 cases of 5 modes, 32 steps each")
    row = next(line for line in lines if line.startswith("circuit   "))
    assert row.split() == ["circuit", "192", "steps", "21", "213", "5.00", "1.60x", "DIFFERS"]


def test_launches_of_a_one_row_step_are_not_shown_where_none_ran():
    bare = [v.model_copy(update={"launches_per_step": None}) for v in examples.VARIANTS]
    lines = lines_of(modes.modes(modes.case("batch", "width 3", **modes.BATCH), variants=bare))
    assert not [line for line in lines if "launches" in line]


@pytest.mark.parametrize(
    ("case", "place"),
    [
        ("batch, width 3, fragmented", "step 3, row 2"),
        ("verify, K=3", "step 5, row 1 of 3"),
        ("verify_batch, K=3 2", "step 6, row 4 (sequence 1, row 1 of 2)"),
        ("verify_batch, K=2 2", "state after step 9 (sequence 1)"),
        ("swap, own record", "state at the end, record and 1 more"),
        ("prefill, 17 tokens", "before step 0, the prefill"),
    ],
)
def test_a_difference_names_step_row_and_sequence(case, place):
    (row,) = [line for line in lines_of(modes.bad()) if line.startswith(f"circuit  {case}  ")]
    assert f"  {place}  " in row


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("width 3,", "DIFFERS, step 3"),
        ("K=3  ", "DIFFERS, step 5"),
        ("K=2 2", "DIFFERS, state"),
        ("17 tokens", "DIFFERS, prefill"),
    ],
)
def test_a_cell_says_whether_and_where(start, said):
    (row,) = [line for line in lines_of(modes.bad()) if line.startswith(start)]
    assert row.endswith(said)
    assert "equal   8.20" in row


def test_what_is_only_shown_is_not_called_a_difference_of_a_judged_forward():
    reported = modes.differing(3, 0, expect="report")
    lines = lines_of(modes.modes(modes.case("swap", "own record", reported)))
    assert [line for line in lines if line.endswith("differs, step 3")]
    assert line_with(lines, "differs, not judged").startswith("circuit")


def shown_case(**facts: object) -> ShownCase:
    (found,) = shown_cases(modes.modes(modes.case("verify_batch", "K", **facts)))
    return found


@pytest.mark.parametrize(
    ("step", "row", "place"),
    [
        (None, 1, "before step 0, the prefill (sequence 1)"),
        (None, 3, "before step 0, the bootstrap (sequence 1)"),
        (None, 7, "before step 0, draft 1 of the head (sequence 1)"),
        (4, 0, "step 4, row 0 (sequence 0, row 0 of 3)"),
        (4, 2, "step 4, row 2 (sequence 0, row 2 of 3)"),
        (4, 3, "step 4, row 3 (sequence 1, row 0 of 2)"),
        (4, 5, "step 4, draft 0 of the head (sequence 0)"),
        (4, 8, "step 4, draft 1 of the head (sequence 1)"),
    ],
)
def test_rows_of_the_draft_head_lie_behind_those_of_the_model(step, row, place):
    found = shown_case(drafter=True, **modes.VERIFY)
    assert found.place(modes.differing(step, row)) == place


def test_ids_of_the_draft_head_and_states_are_places_too():
    found = shown_case(**modes.VERIFY)
    assert found.place(modes.differing(4)) == "step 4, the draft head's ids"
    state = StateDifference(step=2, sequences=(0,))
    assert found.place(modes.in_state(state)) == "state after step 2 (sequence 0)"
    assert found.place(modes.in_state(at_end=("l0.k",))) == "state at the end, l0.k"


@pytest.mark.parametrize(
    ("slots", "runs"),
    [((0,), "0"), ((0, 1, 2), "0-2"), ((0, 1, 3, 4, 5), "0-1, 3-5"), ((0, 2), "0, 2"), ((), "")],
)
def test_slots_show_their_gap(slots, runs):
    assert shown_case(**(modes.VERIFY | {"slots": slots})).slot_runs == runs


def test_times_of_an_earlier_run_are_left_out():
    timings = [
        t.model_copy(update={"cached": t.variant == "circuit"})
        for t in modes.case("swap", "x").timings
    ]
    lines = lines_of(modes.modes(modes.case("swap", "own record", timings=timings)))
    assert line_with(lines, "own record  ").split()[-4:] == ["equal", "8.20", "equal", "-"]


def test_controls_that_are_well_share_a_line_a_variant_and_mode():
    lines = lines_of(modes.modes(modes.case("swap", "x"), controls=(
        *modes.controls("batch", "ok", "ok"), *modes.controls("swap", "ok", "ok", "ok"),
    )))  # fmt: skip
    said = "seen where they were changed, and nowhere else"
    assert line_with(lines, f"circuit, batch: 2 of 2 {said}").strip().startswith("ok")
    assert line_with(lines, f"circuit, swap: 3 of 3 {said}").strip().startswith("ok")
    assert not [line for line in lines if "control 0" in line]


def test_a_control_that_is_not_well_is_told_in_full():
    lines = lines_of(modes.bad())
    assert "controls, circuit, verify: 2 of 4 seen" in line_with(lines, "2 of 4")
    assert line_with(lines, "verify, control 1: lingers").strip().startswith("FAILED")
    assert line_with(lines, "verify, control 3: blind").strip().startswith("BLIND")


def test_a_control_alone_keeps_its_sentence():
    lines = lines_of(modes.modes(modes.case("swap", "x"), controls=modes.controls("swap", "ok")))
    assert line_with(lines, "swap, control 0: ok").strip().startswith("ok")


@pytest.mark.parametrize(
    ("diff", "covered"),
    [
        (
            modes.good(),
            "over 320 steps in 5 cases (1 batch, 1 verify, 1 verify_batch, 1 prefill, 1 swap) and "
            "2 promised pairs of ways, byte for byte",
        ),
        (
            modes.modes(modes.case("batch", "a"), modes.case("batch", "b")),
            "over 128 steps in 2 cases of batch, byte for byte",
        ),
        (modes.modes(modes.case("swap", "a")), "over 64 steps in 1 case of swap, byte for byte"),
    ],
    ids=["every mode", "two cases", "one case"],
)
def test_what_a_pass_covers_counts_the_cases(diff, covered):
    text = " ".join(" ".join(lines_of(diff)).split())
    assert f"circuit-reference and circuit judged {covered}" in text


def test_an_invariance_table_alone_is_covered_by_its_promised_pairs():
    cells = [modes.cell("width", "a", variant=name) for name in ("legacy", "circuit")] + [
        modes.cell("chunks", "b", promised=False)
    ]
    diff = examples.diff(prompts=(), invariance=cells, mode="invariance")
    lines = lines_of(diff)
    assert "legacy and circuit judged over 2 promised pairs of ways" in line_with(lines, "covered")
    assert not [line for line in lines if line.startswith("forward")]


def test_the_invariance_table_tells_promised_from_not():
    lines = lines_of(modes.good())
    assert line_with(lines, "width   ").split() == ["width", "yes", "2", "34", "equal"]
    row = line_with(lines, "prefill_chunks  ")
    assert row.split() == ["prefill_chunks", "no", "1", "17", "differs", "in", "1", "of", "1"]
    broken = lines_of(modes.bad())
    assert line_with(broken, "slot   ").endswith("DIFFERS in 1 of 2")
    where = "slot 0 against slot 7: from step 2, row 0, byte 12; 4 of 17 rows, max abs 0.0156, 1"
    assert line_with(broken, where)
    assert line_with(broken, "alone against width 8: state differs (sequence 1, l0.attn.k)")


def test_a_forward_that_repeats_itself_in_the_table_is_no_repeat_of_the_reference():
    own = examples.control("circuit", mode="invariance", sentence="alone once more: equal")
    lines = lines_of(modes.modes(modes.case("swap", "x"), repeat=(examples.repeat(), own)))
    assert line_with(lines, "circuit: equal to itself in 1 of 1 runs").strip().startswith("ok")
    row = next(line for line in lines if line.startswith("circuit   "))
    assert row.endswith("equal")


def test_drafts_of_the_head_are_told_beside_plain_decoding():
    row = line_with(lines_of(modes.good()), "24 of 64")
    expected = ["circuit", "3", "24", "of", "64", "37.5", "%", "1.75", "5.30", "8.00", "1.51x"]
    assert row.split() == expected


def test_what_the_diff_cost_is_a_line():
    said = "diff 1.12x the sum of its forwards (10.0 s of 11.2 s)"
    assert said in line_with(lines_of(modes.good()), "overhead")
    cached = modes.modes(modes.case("swap", "x"), overhead=None)
    assert not [line for line in lines_of(cached) if line.startswith("overhead")]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_cut(width):
    for diff in (modes.good(), modes.bad(), modes.wide()):
        lines = lines_of(diff, width)
        assert max(map(len, lines)) <= width
        if width >= 80:
            assert "equal   8.20" in " ".join(lines)
        assert width < 80 or not [line for line in lines if "\u2026" in line]


def test_a_report_of_every_mode_reads_back_equal(tmp_path):
    for diff in (modes.good(), modes.bad()):
        report = examples.report(diff=diff)
        report.write(tmp_path)
        assert Report.read(tmp_path) == report
