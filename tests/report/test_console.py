"""What a person sees: the verdict last, a line a control, differences where they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from metpipe.report.console import show
from metpipe.report.schema import Report
from metpipe.report.units import count, fraction, milliseconds, ratio, size
from tests.report import examples


def shown(report: Report, width: int = 120) -> list[str]:
    out = io.StringIO()
    show(report, Console(file=out, width=width), Path("runs/x/report.json"))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def line_with(lines: list[str], part: str) -> str:
    (found,) = [line for line in lines if part in line]
    return found


def test_the_verdict_is_the_last_line_of_a_pass():
    assert shown(examples.report())[-1].startswith("PASS  metpipe's engine counted")
    assert shown(examples.report(memory=None))[-1] == "PASS"


def test_a_fail_ends_in_its_reasons_and_whose_memory_was_counted():
    report = examples.failing_report()
    *_, first, second, _ = shown(report)
    assert first == f"FAIL  {report.reasons[0]}"
    assert second.strip() == report.reasons[1]


def test_what_a_pass_covers_is_said_beside_it():
    covered = line_with(shown(examples.report()), "covered")
    assert "circuit-reference and circuit judged over 192 steps, byte for byte" in covered
    assert "memory on b200: fits" in covered


def test_where_it_ran_and_what_was_planned_are_two_lines():
    lines = shown(examples.report())
    assert "cpu (AMD EPYC 9B14, 2 cores, 8.00 GiB)" in line_with(lines, "executed on")
    assert "planned with the set cpu" in line_with(lines, "planned for")


def test_a_note_stands_where_the_run_is_told():
    report = examples.report(notes=("the checkpoint stores 3 of 9 tensors in F32",))
    lines = shown(report)
    row = line_with(lines, "3 of 9 tensors in F32")
    assert row.startswith("note ")
    assert lines.index(row) < lines.index(line_with(lines, "Diff, single"))


@pytest.mark.parametrize(
    ("forward", "facts"),
    [
        ("legacy  ", ["9.93", "reference"]),
        ("legacy-repeat", ["96 steps", "0", "9.91", "repeats"]),
        ("circuit-reference", ["96 steps", "0", "454", "0.99x", "equal"]),
        ("circuit  ", ["96 steps", "0", "213", "7.36", "1.35x", "equal"]),
    ],
)
def test_each_forward_is_one_row(forward, facts):
    (row,) = [line for line in shown(examples.report()) if line.startswith(forward)]
    assert all(fact in row for fact in facts)


def test_a_difference_says_where_it_starts_and_how_far_it_is():
    lines = shown(examples.failing_report())
    assert "DIFFERS" in line_with(lines, "96 steps      27")
    row = " ".join(line_with(lines, "prompt 2 (105)").split())
    assert row == "circuit prompt 2 (105) step 5, row 0 27 of 32 9 0.0156 1 96.8 %"
    assert "starts in l3.attn.o: 9 of 1,152 bytes, rule linear_add" in "".join(lines)


def test_each_control_is_one_line_and_a_broken_one_shouts():
    lines = shown(examples.failing_report())
    assert line_with(lines, "unowned bytes moved").strip().startswith("FAILED")
    assert line_with(lines, "flipped bit").strip().startswith("FAILED")
    assert line_with(lines, "is vacuous").strip().startswith("BLIND")
    assert line_with(lines, "block's edge").strip().startswith("BLIND")
    assert line_with(lines, "no bit_identical rule applies").strip().startswith("note")
    assert line_with(shown(examples.report()), "self-test").strip().startswith("ok")


def test_repeats_that_are_equal_share_a_line_and_one_that_is_not_has_its_own():
    odd = examples.control("legacy-repeat", "not_repeatable", sentence="prompt 3 is another")
    diff = examples.diff(repeat=(examples.repeat(), examples.repeat(), odd))
    lines = shown(examples.report(diff=diff))
    assert "equal to the reference in 2 of 3 runs" in line_with(lines, "ok  legacy-repeat")
    assert line_with(lines, "prompt 3 is another").strip().startswith("FAILED")


def test_a_repeat_that_differs_is_not_called_a_difference_of_a_forward():
    prompt = examples.prompt(23, examples.comparison("circuit"))
    repeat = examples.comparison("legacy-repeat", mismatched_steps=1, first_mismatch=3)
    unsteady = prompt.model_copy(update={"comparisons": (repeat, *prompt.comparisons[1:])})
    lines = shown(examples.report(diff=examples.diff(prompts=(unsteady,))))
    assert "DOES NOT REPEAT" in line_with(lines, "32 steps       1")


def test_a_difference_that_is_only_shown_is_not_judged():
    circuit = examples.DIFFERING.model_copy(update={"expect": "report"})
    assert any(
        "differs, not judged" in line
        for line in shown(examples.report(diff=examples.diff(circuit)))
    )


def test_times_of_an_earlier_run_are_never_compared():
    prompts = (examples.prompt(23, examples.comparison("circuit"), cached=True),)
    lines = shown(examples.report(diff=examples.diff(prompts=prompts)))
    (circuit,) = [line for line in lines if line.startswith("circuit  ")]
    assert circuit.split() == ["circuit", "32", "steps", "0", "213", "7.36", "-", "equal"]


def test_memory_over_budget_says_so_and_an_exact_ledger_row_shows_every_byte():
    lines = shown(examples.failing_report())
    assert "does not fit" in line_with(lines, "headroom")
    assert "+16" in line_with(lines, "94,371,856")
    assert any("not even 1 would fit" in line for line in lines)


def test_the_last_line_names_whose_engine_was_counted_and_what_is_not_calibrated():
    last = "metpipe's engine counted; uncalibrated on b200, a range of 3.73 GiB"
    assert shown(examples.report())[-1] == f"PASS  {last}"
    assert shown(examples.failing_report())[-1].strip() == last


def test_a_rule_alone_shows_its_cases_and_both_sides():
    lines = shown(examples.rule_report(equal=False))
    assert line_with(lines, "huge and tiny").split()[-4:] == ["7", "118", "0.0156", "1"]
    assert "launches 2 -> 1, 0.0180 -> 0.0110 ms (1.64x)" in line_with(lines, "chain -> rule")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_line_is_wider_than_the_terminal(width):
    for report in (examples.report(), examples.failing_report(), examples.rule_report()):
        assert max(map(len, shown(report, width))) <= width


def test_numbers_are_shown_as_people_read_them():
    assert [size(n) for n in (0, 1023, 1024, 1536 << 20, -(3 << 30))] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 GiB",
        "-3.00 GiB",
    ]
    assert fraction(1.0) == "100 %"
    assert fraction(0.99999) == "99.9 %"  # never rounded up to all
    assert (count(None), count(12345), milliseconds(None), ratio(2.0, None)) == (
        "-",
        "12,345",
        "-",
        "-",
    )
