"""Along what a sweep varies."""

from __future__ import annotations

from metpipe.report.sweep_axes import axes, fixed, typed
from tests.report.sweep_examples import grid, job


def test_what_varies_is_an_axis_in_the_order_typed_numbers_by_size():
    jobs = [
        job(0, "hardware=b200", "workload.isl=4096"),
        job(1, "hardware=b200", "workload.isl=512"),
        job(2, "hardware=auto", "workload.isl=4096"),
        job(3, "hardware=auto", "workload.isl=512"),
    ]
    found = axes(jobs)
    assert [(axis.key, axis.values, axis.numeric) for axis in found] == [
        ("hardware", ("b200", "auto"), False),
        ("workload.isl", ("512", "4096"), True),
    ]
    assert [axis.name for axis in found] == ["hardware", "prompt tokens"]


def test_what_all_jobs_have_alike_is_no_axis():
    jobs = grid()
    assert fixed(jobs) == {"pipeline": "memory", "model": "qwen3_8b"}
    assert {axis.key for axis in axes(jobs)} == {"workload.concurrency", "workload.isl"}


def test_an_added_key_is_the_key_and_a_later_value_of_it_wins():
    assert typed(job(0, "+model.config.x=1", "steps=4", "steps=5"))["model.config.x"] == "1"
    assert typed(job(0, "steps=4", "steps=5"))["steps"] == "5"


def test_an_infinite_value_is_a_name():
    jobs = [job(0, "slots=null"), job(1, "slots=2")]
    assert not axes(jobs)[0].numeric
