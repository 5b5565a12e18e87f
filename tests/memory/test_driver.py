"""Of which plans a class's law speaks: one engine, the devices of its boots, one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.circuit import Ranks, Select, circuit_from_config
from metpipe.errors import ConfigError
from metpipe.memory import evaluate, share_out
from metpipe.memory.driver import CONTEXT, doubt_of, law_of, sibling_of
from metpipe.resources import kernels_dir

from .conftest import QWEN3_8B
from .met.points import exact, point_of

MIB = 2**20
HOPPER = 745_931_264
"""The most that any boot on the H200 took."""
GRAPHS = int(4.08 * 2**30)


def terms(point):
    report = evaluate(point)
    kinds = ("driver", "graphs") if point.met is None else ("driver",)
    return [report.term(kind) for kind in kinds]


def spans(point):
    return [(term.low, term.high, term.status) for term in terms(point)]


@pytest.fixture
def shared(big, cpu_set):
    """The point shared by two ranks."""
    parallel = share_out(
        circuit_from_config(QWEN3_8B, kernels_dir()), Ranks(tensor=2), cpu_set, Select.reference()
    )
    return replace(big, parallel=parallel, planned=parallel.stages[0].planned)


def met_on(device):
    return point_of("qwen3_8_27b_nvfp4", {}, device=device)


def test_each_engine_is_calibrated_where_it_was_booted(big, devices, on):
    assert spans(on(big, device=devices.by_id["h200-sxm"])) == [
        (HOPPER, HOPPER, "calibrated"),
        (0, 0, "calibrated"),
    ]
    # budget 111064303820: 1024 MiB and 111064303 x 21
    gb10 = 1024 * MIB + 111_064_303 * 21
    (driver,) = terms(exact(met_on("gb10")))
    assert (driver.low, driver.high, driver.status) == (gb10, gb10, "calibrated")
    assert "boots of met's engine on gb10" in driver.source


def test_the_law_of_mets_engine_bounds_this_one_on_gb10(big, devices, on):
    point = on(big, device=replace(devices.by_id["gb10"], memory_bytes=130_663_886_848))
    driver = 1024 * MIB + 111_064_303 * 21
    assert spans(point) == [
        (475 * MIB, driver, "uncalibrated"),
        (0, GRAPHS, "uncalibrated"),
    ]
    source = terms(point)[0].source
    assert "calibrated on met's engine, and nobody calibrated metpipe's there" in source


@pytest.mark.parametrize(
    ("device", "thousands"), [("h200-sxm", 128_140_349), ("h100-sxm", 72_649_371)]
)
def test_the_law_of_this_engine_is_no_law_of_mets_on_hopper(device, thousands):
    """The larger of the two bounds: 1 GiB and 21 thousandths of 85 % of the device."""
    (driver,) = terms(met_on(device))
    assert (driver.low, driver.high) == (475 * MIB, 2**30 + thousands * 21)
    assert driver.status == "uncalibrated"
    assert "calibrated on metpipe's engine, and nobody calibrated met's there" in driver.source


def test_a_larger_law_of_another_engine_is_the_upper_end(big, devices, on):
    device = devices.by_id["gb10"]
    large = replace(device.driver, fixed_bytes=2**34, budget_per_mille=0)
    (driver, _) = terms(on(big, device=replace(device, driver=large)))
    assert (driver.low, driver.high) == (475 * MIB, 2**34)
    assert driver.source.endswith(
        f"to {2**34} + floor(budget / 1000) x 0, calibrated on {large.calibrated_on}"
    )


@pytest.mark.parametrize("device", ["h100-sxm", "h100-nvl"])
def test_another_device_of_the_class_takes_the_law_as_its_upper_end(big, devices, on, device):
    """Graphs were captured at those boots, so they lie in it."""
    point = on(big, device=devices.by_id[device])
    assert spans(point) == [(475 * MIB, HOPPER, "uncalibrated"), (0, 0, "uncalibrated")]
    driver, graphs = terms(point)
    assert f"on h200-sxm, and nobody has on {device}" in driver.source
    assert "upper end of the driver's part" in graphs.source


def test_a_law_below_a_context_is_no_empty_range(big, devices, on):
    device = devices.by_id["h100-sxm"]
    small = replace(device.driver, fixed_bytes=5)
    assert spans(on(big, device=replace(device, driver=small)))[0][:2] == (5, 5)


@pytest.mark.parametrize("device", ["h200-sxm", "h100-sxm"])
def test_a_rank_of_several_has_no_law(shared, devices, on, device):
    point = on(shared, device=devices.by_id[device])
    budget = evaluate(point).budget
    assert spans(point) == [
        (CONTEXT.at_least_bytes, 2**30 + budget // 1000 * 21, "uncalibrated"),
        (0, GRAPHS, "uncalibrated"),
    ]
    assert "with one rank, and nobody calibrated one of several" in terms(point)[0].source


def test_what_is_known_of_a_device_is_of_the_class_whichever_engine_runs(big, devices, on):
    gb10 = on(big, device=devices.by_id["gb10"], serve={"gpu_memory_utilization": 0.9})
    notes = " ".join(evaluate(gb10).notes)
    assert "above the ceiling 0.85" in notes
    assert "unified memory" in notes


@pytest.mark.parametrize("device", ["h200-sxm", "h100-sxm", "b200"])
def test_met_is_refused_where_this_engine_alone_was_booted(device):
    point = met_on(device)
    strict = replace(point, device=replace(point.device, require_calibrated=True))
    with pytest.raises(ConfigError, match=rf"hardware={device}: .* calibrated for met's engine"):
        evaluate(strict)


def test_one_function_decides(big, shared, devices, on):
    points = {
        "h200": on(big, device=devices.by_id["h200-sxm"]),
        "h100": on(big, device=devices.by_id["h100-sxm"]),
        "gb10": on(big, device=devices.by_id["gb10"]),
        "ranks": on(shared, device=devices.by_id["h200-sxm"]),
        "b200": big,
        "met": met_on("gb10"),
        "met_h200": met_on("h200-sxm"),
        "met_h100": met_on("h100-sxm"),
    }
    assert {name for name, point in points.items() if law_of(point)} == {"h200", "met"}
    assert {name for name, point in points.items() if sibling_of(point)} == {"h100"}
    assert {name for name, point in points.items() if not doubt_of(point)} == {"h200", "met"}
