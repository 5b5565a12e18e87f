"""A sweep on the console."""

from __future__ import annotations

import io

from rich.console import Console

from metpipe.report.sweep_record import SweepRecord
from metpipe.report.sweep_table import parts
from tests.report.sweep_examples import GIB, grid, job, line, plan, refused


def shown(jobs, width: int = 120) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width)
    for part in parts(SweepRecord(jobs=tuple(jobs))):
        console.print(part)
    return [text.rstrip() for text in out.getvalue().splitlines()]


def test_a_row_holds_the_swept_values_the_range_the_room_and_the_answer():
    lines = shown(grid())
    head = ["total,", "headroom,", "most", "longest"]
    assert lines[1].split() == head
    names = ["job", "concurrency", "isl", "GiB", "GiB", "answer", "sequences", "prompt"]
    assert lines[2].split() == names
    row = "0 1 1024 15.66 .. 19.16 40.84 fits 256 130,000"
    assert " ".join(lines[3].split()) == row
    assert " ".join(lines[11].split()).startswith("8 16 32768 79.53 .. 83.03 -23.03 does not")


def test_a_status_has_a_column_only_where_one_is_no_pass():
    assert shown(grid())[0] == "Sweep of 9 jobs, each a PASS"
    lines = shown([*grid()[:8], refused(8, "workload.concurrency=16", "workload.isl=32768")])
    assert lines[0] == "Sweep of 9 jobs"
    assert "status" in lines[2].split()


def test_no_value_is_cut_in_a_narrow_terminal():
    out = io.StringIO()
    console = Console(file=out, width=40)
    for part in parts(SweepRecord(jobs=grid())):
        console.print(part, crop=False)
    assert "130,000" in out.getvalue()
    assert "…" not in out.getvalue()


def test_what_is_alike_is_said_once():
    lines = shown(grid())
    assert "  all with pipeline=memory model=qwen3_8b" in lines
    assert "  budget 60.00 GiB" in lines
    assert "  exact: weights, kv, tables; calibrated: step; uncalibrated: driver" in lines


def test_a_status_that_only_some_plans_have_is_one_in_part():
    first, *rest = grid()
    kv = first.memory.terms[1].model_copy(update={"status": "uncalibrated"})
    terms = (first.memory.terms[0], kv, *first.memory.terms[2:])
    other = first.memory.model_copy(update={"terms": terms})
    lines = shown((first.model_copy(update={"memory": other}), *rest))
    said = (
        "  exact: weights, tables; calibrated: step; uncalibrated: driver; uncalibrated in part: kv"
    )
    assert said in lines


def test_the_loads_of_a_grid_are_not_taken_for_the_workload():
    jobs = [job(i, f"grid.isl=[{n}]", memory=plan(1024, 1)) for i, n in enumerate((1000, 2000))]
    assert "grid.isl" in shown(jobs)[2].split()


def test_two_numbers_make_a_grid_of_the_room_that_is_left():
    lines = shown(grid(budget=80 * GIB))
    at = lines.index(
        "Headroom in GiB: sequences at once down, prompt tokens across; ? depends on a range"
    )
    assert lines[at + 1].split() == ["1,024", "8,192", "32,768"]
    assert lines[at + 4].split() == ["16", "58.97", "44.97", "-3.03?"]


def test_a_job_without_a_plan_has_its_status_in_the_grid_and_its_reason_below_the_table():
    jobs = [*grid()[:8], refused(8, "workload.concurrency=16", "workload.isl=32768")]
    lines = shown(jobs)
    assert lines[-1].split()[-1] == "USAGE"
    assert "  #8: slots: too few" in lines


def test_jobs_with_one_reason_share_a_line_and_there_are_not_too_many_of_them():
    jobs = [refused(i, f"slots={i}") for i in range(20)]
    (line,) = [text for text in shown(jobs) if "too few" in text]
    assert line == "  #0 #1 #2 #3 #4 #5 #6 #7 and 12 more: slots: too few"
    jobs = [job(i, f"slots={i}", status="DIED", exit=3, error=f"bug {i}") for i in range(20)]
    assert sum("bug" in text for text in shown(jobs)) == 8
    assert "  12 more reasons in sweep.json" in shown(jobs)


def test_along_one_axis_there_is_no_grid_and_a_wide_sweep_fits_the_terminal():
    lines = shown(line(40))
    assert not any(text.startswith("Headroom") for text in lines)
    assert max(map(len, lines)) <= 120
    assert "…" not in "".join(lines)


def test_three_axes_of_long_names_fit_the_terminal():
    jobs = [
        job(
            0,
            f"hardware={device}",
            f"workload.isl={isl}",
            f"workload.concurrency={n}",
            memory=plan(isl, n, device=device, budget=budget),
        )
        for device, budget in (("rtx_pro_6000", 80 * GIB), ("h100_sxm", 70 * GIB))
        for isl in (1024, 120_000)
        for n in (1, 256)
    ]
    text = "\n".join(shown(jobs))
    assert "…" not in text
    assert "does not fit" in text


def test_a_budget_and_a_decision_that_differ_are_columns():
    jobs = [
        job(0, "hardware=a", memory=plan(9, 1, expert_tables="built, 16.9 GiB")),
        job(1, "hardware=b", memory=plan(9, 1, budget=GIB, expert_tables="skipped, 16.9 GiB")),
    ]
    lines = shown(jobs)
    assert lines[3].endswith("built, 16.9 GiB")
    assert "60.00" in lines[3].split()
    assert lines[4].endswith("skipped, 16.9 GiB")
    assert not any(text.strip().startswith(("budget 60", "expert tables")) for text in lines[5:])
    same = shown([job(i, f"hardware={i}", memory=jobs[0].memory) for i in range(2)])
    assert "  expert tables: built, 16.9 GiB" in same


def test_a_plan_of_several_ranks_says_whose_sizes_these_are():
    jobs = [job(n, f"serve.tensor_parallel_size={n}", memory=plan(9, n, ranks=n)) for n in (1, 2)]
    assert "  sizes are of the fullest rank" in shown(jobs)
    assert "  sizes are of the fullest rank" not in shown(grid())
