"""Many loads at once: what a grid says is what each evaluation says."""

from __future__ import annotations

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import Workload, evaluate
from metpipe.memory.grid import Loads, grid_of, loads_of

LOADS = Loads(isl=(1, 700, 1000), osl=(1, 24), concurrency=(1, 3, 9))


def test_every_combination_is_a_load_and_the_prompts_change_fastest():
    found = list(loads_of(LOADS))
    assert len(found) == len(LOADS) == 18
    assert found[:4] == [
        Workload(1, 1, 1), Workload(700, 1, 1), Workload(1000, 1, 1), Workload(1, 1, 3)
    ]  # fmt: skip


def test_each_room_is_the_evaluations_and_none_where_the_serve_takes_no_such_load(tiny, on):
    point = on(tiny, serve={"max_seq_len": 1010, "max_batch_size": 8})
    for load, room in zip(loads_of(LOADS), grid_of(point, LOADS), strict=True):
        if load.concurrency > 8 or load.isl + load.osl > 1010:
            assert room is None
            continue
        asked = {"isl": load.isl, "osl": load.osl, "concurrency": load.concurrency}
        report = evaluate(on(point, load=asked))
        assert room == (report.headroom_low, report.headroom_high)


def test_a_grid_that_the_serve_takes_nothing_of_is_refused(tiny):
    with pytest.raises(ConfigError, match=r"grid: none of its 2 loads"):
        list(grid_of(tiny, Loads(isl=(10**6, 10**7), osl=(1,), concurrency=(1,))))
