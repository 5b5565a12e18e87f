"""The answers under a memory bill: a line each, in the words of what was asked."""

from __future__ import annotations

from metpipe.report.memory_answers import counted, fixes, queries, ranks
from metpipe.report.memory_section import MemorySection, memory_section

from . import memory_examples


def section(*, fits: bool = True, **changed: object) -> MemorySection:
    record = memory_examples.memory_record(fits=fits) | changed
    return memory_section(record, {"isl": 100, "osl": 20, "concurrency": 3})


def lines(**inverse: object) -> list[str]:
    return list(queries(section(inverse=inverse)))


def test_both_ends_of_a_range_are_said():
    (line,) = lines(max_osl=memory_examples.query(1, 4000, 1000, 2000))
    assert line == (
        "up to 1,000 (surely) to 2,000 (possibly) generated tokens would fit (prompts of 100, "
        "3 at once)"
    )


def test_the_end_of_what_was_asked_is_no_limit_of_the_memory():
    flags, asked = lines(
        max_concurrency=memory_examples.query(1, 8, 8, 8),
        max_slots=memory_examples.query(3, 65536, 65536, 65536),
    )
    assert flags.endswith("would fit (100 + 20 tokens each), the most that the serve flags allow")
    assert asked == "up to 65,536 state slots would fit, the most that is asked"


def test_the_least_of_something_is_worded_so():
    share, device = lines(
        min_utilization=memory_examples.query(0.001, 1.0, 0.56, 0.458, sense="least"),
        min_device=memory_examples.query("h100-sxm", "gb300", "b200", "b200", sense="least"),
    )
    assert share.endswith("memory that would do: 0.56 (surely) to 0.458 (possibly)")
    assert device == "the smallest device that would do: b200"


def test_nothing_that_fits_names_the_value_that_asks_for_least():
    most, least = lines(
        max_verify=memory_examples.query(2, 8, None, None),
        min_utilization=memory_examples.query(0.001, 1.0, None, None, sense="least"),
    )
    assert most == "rows of a verify: not even 2 would fit"
    assert least.endswith("would do: not even 1.0 would fit")


def test_what_may_fit_and_surely_does_not():
    most, least = lines(
        max_isl=memory_examples.query(1, 100, None, 7),
        min_device=memory_examples.query("l4", "b200", None, "b200", sense="least"),
    )
    assert most.startswith("surely no prompt tokens, possibly up to 7 would fit (20 generated")
    assert least == "the smallest device that would do: surely none, possibly b200"


def test_what_was_not_asked_says_why():
    (line,) = lines(
        max_snapshot_slots=memory_examples.query(None, None, None, None, why="none are kept")
    )
    assert line == "snapshots of recurrent state: not asked, none are kept"


def test_devices_that_were_not_asked_are_named_with_the_reason():
    left_out = {"no kernels for their class": ("l4", "a100-40"), "unknown memory": ("b200",)}
    device = memory_examples.query("h100-sxm", "gb300", "gb300", "gb300", sense="least")
    assert lines(min_device=device | {"left_out": left_out}) == [
        "the smallest device that would do: gb300",
        "not asked: l4, a100-40 (no kernels for their class)",
        "not asked: b200 (unknown memory)",
    ]


def test_an_exception_is_stated_behind_its_answer():
    answer, exception = lines(max_isl=memory_examples.query(1, 100, 10, 10, exceptions=(12, 13)))
    assert answer.startswith("up to 10 prompt tokens")
    assert exception == (
        "but not in order: 12, 13 break what max_isl presumes, that a value fits wherever one that "
        "asks for more does"
    )


def test_a_larger_device_that_would_not_do_is_said_to():
    _, exception = lines(
        min_device=memory_examples.query(
            "h100-sxm", "gb300", "l4", "l4", sense="least", exceptions=("rtx-pro-6000",)
        )
    )
    assert exception == ("but not on every larger one: on rtx-pro-6000 it would not surely fit")


def test_a_flag_that_nobody_typed_is_said_with_the_answer():
    """The question is about a serve that has it."""
    flag = {"beside": "serve.enable_prefix_caching=true"}
    some, none = (
        lines(max_snapshot_slots=memory_examples.query(0, 65536, end, end) | flag)
        for end in (300, None)
    )
    assert some == [
        "up to 300 snapshots of recurrent state would fit with serve.enable_prefix_caching=true"
    ]
    assert none == [
        "snapshots of recurrent state: it would not fit with serve.enable_prefix_caching=true, "
        "even without any"
    ]


def test_changes_are_offered_where_it_does_not_surely_fit():
    assert list(fixes(section(fits=True))) == []
    sure, perhaps = fixes(section(fits=False))
    assert sure == "workload.osl=16 would make it fit, leaving 1.00 GiB .. 2.00 GiB"
    assert perhaps == "slots=3 might make it fit, leaving -1.00 GiB .. 1.00 GiB"


def test_no_change_that_helps_is_said_too():
    (line,) = fixes(section(fits=False, fixes=[]))
    assert line.startswith("no single change")


def test_each_stage_is_a_column_and_the_fullest_is_marked():
    def rank(first, last, low, high):
        return {
            "first": first,
            "last": last,
            "first_layer": 5 * first,
            "last_layer": 5 * first + 9,
            "terms": {"weights": (low, low), "driver": (0, high - low)},
            "total_low": low,
            "total_high": high,
            "headroom_low": -high,
            "headroom_high": -low,
            "answer": "does not fit",
        }

    table = ranks(section(ranks=[rank(0, 1, 5, 9), rank(2, 3, 6, 7)], fullest=0))
    assert [str(column.header) for column in table.columns] == [
        "term",
        "ranks 0 to 1 (the fullest)\nlayers 0 to 9",
        "ranks 2 to 3\nlayers 10 to 19",
    ]
    assert list(table.columns[1].cells) == ["5 B", "0 B .. 4 B", "5 B .. 9 B", "-9 B .. -5 B"]


def test_a_term_that_nobody_counted_leaves_a_plan_in_part_uncalibrated():
    driver = {"id": "driver", "low": 10, "high": 10, "status": "calibrated", "source": "a boot"}
    outside = {"id": "outside", "low": 0, "high": 0, "status": "uncalibrated"}
    for source, said in (("not counted: away", "; partly uncalibrated on b200"), ("a sum", "")):
        found = counted(section(terms=[driver, {**outside, "source": source}]))
        assert found.startswith(f"metpipe's engine counted{said}")
        assert (found == "metpipe's engine counted") == (not said)


def test_a_calibrated_driver_leaves_a_plan_in_part_uncalibrated():
    facts = {"id": "driver", "low": 10, "high": 10, "status": "calibrated", "source": "a boot"}
    arena = {"id": "arena", "low": 0, "high": 9, "status": "uncalibrated", "source": ""}
    assert counted(section(terms=[facts])) == "metpipe's engine counted"
    said = counted(section(terms=[facts, arena]))
    assert said.startswith("metpipe's engine counted; partly uncalibrated on b200, a range of")
