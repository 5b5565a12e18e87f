"""Which panels and which terms the stacked plot shows."""

from __future__ import annotations

from metpipe.report.sweep_axes import axes
from metpipe.report.sweep_stacks import MAX_PANELS, along_of, panels, stacks
from tests.report.sweep_examples import DRIVER, GIB, TABLES, grid, job, line, plan, refused


def test_the_longest_number_stands_below_the_bars_and_context_before_others():
    assert along_of(axes(grid())).key == "workload.isl"
    assert along_of(axes(grid(numbers=(1, 2, 4, 8)))).key == "workload.concurrency"
    names = [job(i, f"hardware={n}", f"slots={i % 2}") for i, n in enumerate("abcd")]
    assert along_of(axes(names)).key == "slots"


def test_a_panel_for_each_value_of_the_other_axis():
    jobs = grid()
    swept = axes(jobs)
    found = panels(jobs, swept, along_of(swept))
    assert [panel.title for panel in found] == ["1 at once", "4 at once", "16 at once"]
    assert [job and job.job for job in found[1].jobs] == ["3", "4", "5"]


def test_a_refused_job_keeps_its_place_and_a_panel_without_any_plan_is_left_out():
    jobs = [*grid()[:5], refused(5, "workload.concurrency=4", "workload.isl=32768")]
    for number, isl in enumerate((1024, 8192, 32768), 6):
        jobs.append(refused(number, "workload.concurrency=16", f"workload.isl={isl}"))
    swept = axes(jobs)
    found = panels(jobs, swept, along_of(swept))
    assert [panel.title for panel in found] == ["1 at once", "4 at once"]
    assert [j is not None and j.memory is None for j in found[1].jobs] == [False, False, True]


def test_a_point_that_a_sweep_does_not_have_is_none():
    jobs = grid()[:8]
    swept = axes(jobs)
    assert panels(jobs, swept, along_of(swept))[2].jobs[2] is None


def test_there_are_not_more_panels_than_can_be_seen():
    jobs = grid(numbers=range(1, MAX_PANELS + 5), lengths=range(1, 30))
    swept = axes(jobs)
    assert len(panels(jobs, swept, along_of(swept))) == MAX_PANELS


def test_what_varies_is_on_top_and_what_is_small_is_summed_with_its_weakest_status():
    plans = [j.memory for j in grid() if j.memory]
    found = stacks(plans, top=60 * GIB)
    assert [(stack.name, stack.status) for stack in found] == [
        ("other", "calibrated"),
        ("weights", "exact"),
        ("driver", "uncalibrated"),
        ("kv", "exact"),
    ]
    assert found[0].of(plans[0]) == (2 * TABLES, 2 * TABLES)
    assert found[2].of(plans[0]) == DRIVER
    for one in plans:  # nothing is drawn twice, nothing is lost
        assert sum(stack.of(one)[0] for stack in found) == one.low
        assert sum(stack.of(one)[1] for stack in found) == one.high


def test_a_single_small_term_keeps_its_name_and_one_of_nothing_is_left_out():
    one = plan(1024, 1)
    few = one.model_copy(update={"terms": tuple(t for t in one.terms if t.id != "step")})
    kept = [stack.name for stack in stacks([few], top=12 * GIB)]
    assert kept == ["weights", "kv", "tables", "driver"]


def test_forty_points_are_one_panel():
    jobs = line(40)
    swept = axes(jobs)
    (panel,) = panels(jobs, swept, along_of(swept))
    assert len(panel.plans) == 40
