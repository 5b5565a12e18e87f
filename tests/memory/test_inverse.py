"""The bisection on plain functions, and the queries against the evaluator itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate, largest_fitting, max_concurrency, max_isl


@pytest.mark.parametrize("limit", [1, 2, 7, 64, 99, 100])
def test_bisection_finds_the_limit_in_ten_calls(limit):
    calls = []

    def fits(value):
        calls.append(value)
        return value <= limit

    assert largest_fitting(1, 100, fits) == limit
    assert len(calls) <= 10


def test_nothing_fits():
    assert largest_fitting(1, 100, lambda _: False) is None


def test_an_empty_range_is_an_error():
    with pytest.raises(ValueError, match=r"9\.\.8"):
        largest_fitting(9, 8, lambda _: True)


def test_most_sequences_fit_and_one_more_does_not(big, devices, on):
    point = on(big, device=replace(devices.by_id["cpu"], memory_bytes=40 * 2**30))
    answer = max_concurrency(point)
    assert answer.surely == answer.possibly
    for concurrency in range(1, 129):
        fits = evaluate(on(point, load={"concurrency": concurrency})).answer == "fits"
        assert fits == (concurrency <= answer.surely)
    assert 1 < answer.surely < 128
    assert answer.exceptions == ()
    assert answer.evaluations <= 10 + 8


def test_longest_prompt_fits_and_longer_ones_do_not(big, devices, on):
    point = on(big, device=replace(devices.by_id["cpu"], memory_bytes=40 * 2**30))
    answer = max_isl(point)
    assert 1 < answer.surely < 40960 - 1024
    for step in range(-200, 200, 7):
        isl = answer.surely + step
        fits = evaluate(on(point, load={"isl": isl})).answer == "fits"
        assert fits == (isl <= answer.surely)


def test_a_range_has_two_answers(big, on):
    point = on(big, device=replace(big.device, memory_bytes=40 * 2**30))
    answer = max_concurrency(point)
    assert answer.surely < answer.possibly
    around = {n: evaluate(on(point, load={"concurrency": n})).answer for n in range(1, 129)}
    assert answer.surely == max(n for n, said in around.items() if said == "fits")
    assert answer.possibly == max(n for n, said in around.items() if said != "does not fit")


def test_queries_end_at_slots_and_at_the_longest_sequence(tiny, on):
    assert max_concurrency(on(tiny, slots=5)).surely == 5
    assert max_isl(tiny).surely == 40960 - 20


def test_nothing_fits_on_a_small_device(big, on):
    answer = max_concurrency(on(big, device=replace(big.device, memory_bytes=2**30)))
    assert (answer.surely, answer.possibly) == (None, None)


def test_a_refusal_ends_the_query(tiny, on):
    with pytest.raises(ConfigError, match="max_seq_len"):
        max_concurrency(on(tiny, load={"isl": 50000}))


def test_an_island_above_the_answer_is_reported(tiny, monkeypatch):
    """1..10 and 13 of 20 fit: the bisection ends at 10, the look around it meets 13."""

    def islanded(point):
        value = point.workload.concurrency
        return "fits" if value <= 10 or value == 13 else "does not fit"

    monkeypatch.setattr("metpipe.memory.inverse.answer_at", islanded)
    answer = max_concurrency(replace(tiny, slots=20))
    assert (answer.surely, answer.exceptions) == (10, (13,))
