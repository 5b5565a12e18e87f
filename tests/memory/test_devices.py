"""The registry: its facts, what it refuses, and how a config picks from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from metpipe.errors import ConfigError
from metpipe.memory.devices import Devices, device_from_config, find_device, match_device
from metpipe.memory.registry import parse_devices, read_devices
from metpipe.resources import PACKAGE

ROOT = PACKAGE.parent
DEVICES = read_devices(ROOT / "kernels" / "DEVICES.toml")
LAW = {
    "util_ceiling": 0.85,
    "driver_fixed_bytes": 2**30,
    "driver_budget_per_mille": 21,
    "unified": True,
    "accounting": "met",
    "calibrated_devices": ["quick"],
    "calibrated_on": "a boot",
}


@pytest.mark.parametrize(
    ("device_id", "memory_bytes", "sm_count"),
    [
        ("cpu", None, None),
        ("h100-sxm", 85_469_849_190, 132),
        ("h100-nvl", 100_931_731_456, 132),
        ("h200-sxm", 150_753_352_089, 132),
        ("b200", 192_307_160_678, 148),
        ("gb200-b200", 199_715_979_264, 148),
        ("gb300", 299_573_968_896, 148),
        ("hgx-b300", 288_407_053_926, 148),
        ("gb10", 130_674_379_980, 48),
        ("a100-80", 85_094_039_552, 108),
        ("a100-40", 42_283_953_029, 108),
        ("l40s", 47_663_399_567, 142),
        ("l4", 23_654_532_382, 58),
        ("rtx-3090", 25_318_832_209, 82),
        ("rtx-4090", 25_254_407_700, 128),
        ("rtx-5090", 33_672_543_600, 170),
        ("rtx-pro-6000", 101_973_261_025, 188),
        ("mi300x", 205_825_570_242, 304),
    ],
)
def test_shipped_devices(device_id, memory_bytes, sm_count):
    device = find_device(DEVICES, device_id)
    assert (device.memory_bytes, device.sm_count) == (memory_bytes, sm_count)


def test_the_table_of_shipped_devices_is_whole():
    assert len(DEVICES.by_id) == 18


def test_only_gb10_and_hopper_have_laws_each_of_one_engine_and_one_device():
    known = {d.id: d.driver for d in DEVICES.by_id.values() if d.driver is not None}
    assert {key: (law.accounting, law.calibrated_devices) for key, law in known.items()} == {
        **dict.fromkeys(("h100-sxm", "h100-nvl", "h200-sxm"), ("metpipe", ("h200-sxm",))),
        "gb10": ("met", ("gb10",)),
    }


def test_every_device_has_a_hardware_choice_and_no_choice_is_without_device():
    choices = {path.stem for path in (ROOT / "conf" / "hardware").glob("*.yaml")}
    assert choices == {d.replace("-", "_") for d in DEVICES.by_id} | {"auto"}


@pytest.mark.parametrize("choice", ["h200_sxm", "h200-sxm"])
def test_both_spellings_of_an_id(choice):
    assert find_device(DEVICES, choice).id == "h200-sxm"


def test_an_unknown_device_is_refused_with_near_names():
    with pytest.raises(ConfigError, match=r"'h200'.*near names: h200-sxm"):
        find_device(DEVICES, "h200")


def test_an_id_like_none_lists_all():
    with pytest.raises(ConfigError, match=r"b200, cpu, gb10"):
        find_device(DEVICES, "zzzz!!!!")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"util_ceiling": 1.5}, "util_ceiling"),
        ({"util_ceiling": 0}, "util_ceiling"),
        ({"driver_budget_per_mille": 1001}, "driver_budget_per_mille"),
        ({"driver_fixed_bytes": -1}, "driver_fixed_bytes"),
        ({"driver_fixed_bytes": 1.5}, "driver_fixed_bytes"),
        ({"unified": 1}, "unified"),
        ({"driver_slack": 3}, "driver_slack"),
        ({"calibrated_on": ""}, "calibrated_on"),
        ({"accounting": "vllm"}, "accounting"),
        ({"calibrated_devices": []}, "calibrated_devices"),
        ({"calibrated_devices": ["quick"]}, r"calibrated_devices: no .* has the id 'quick'"),
        ({"calibrated_devices": ["cpu"]}, r"calibrated_devices: no .* has the id 'cpu'"),
    ],
)
def test_a_memory_table_out_of_range_is_refused_by_key(change, message):
    with pytest.raises(ConfigError, match=rf"x\.toml: class 'fast', memory\.{message}"):
        with_law(LAW | change)


@pytest.mark.parametrize("key", LAW)
def test_a_memory_table_needs_every_key(key):
    table = {name: value for name, value in LAW.items() if name != key}
    with pytest.raises(ConfigError, match=rf"{key}: is missing"):
        with_law(table)


def with_law(table: dict[str, object]) -> Devices:
    """The registry below with a law for its fast class."""
    return with_table("memory", table)


def with_table(name: str, table: dict[str, object]) -> Devices:
    """The registry below with a table of its fast class."""
    lines = f"[class.{name}]\n{_lines(table)}"
    return parse_devices(REGISTRY.replace('kind = "gpu"\n', f'kind = "gpu"\n{lines}'), "x.toml")


def _lines(table: dict[str, object]) -> str:
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())


REGISTRY = """
schema_version = 1
[sources]
machine = "asked"
[[class]]
id = "cpu"
kind = "cpu"
[[class]]
id = "fast"
kind = "gpu"
[[device]]
id = "cpu"
class = "cpu"
name = "this"
sources = ["machine"]
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version = 1", "schema_version = 2", "schema_version"),
        ('class = "cpu"', 'class = "gpu"', r"no \[\[class\]\] 'gpu'"),
        ('sources = ["machine"]', 'sources = ["rumour"]', "rumour"),
        ('name = "this"', 'name = "this"\ncolour = "red"', "colour"),
        ('name = "this"', 'name = "this"\nusable_fraction = 1.5', "usable_fraction"),
        ('class = "cpu"', 'class = "fast"', "give or list in `unknown`: arch"),
        ('id = "fast"', 'id = "cpu"', "appears more than once"),
        ("[sources]", "[sources", "not valid TOML"),
    ],
)
def test_a_broken_registry_is_refused(old, new, message):
    with pytest.raises(ConfigError, match=message):
        parse_devices(REGISTRY.replace(old, new), "mine.toml")


def test_duplicate_device_is_refused():
    row = REGISTRY[REGISTRY.index("[[device]]") :]
    with pytest.raises(ConfigError, match=r"\[\[device\]\]: the id 'cpu'"):
        parse_devices(REGISTRY + row, "mine.toml")


def test_facts_of_the_config_replace_the_registry():
    facts = {"id": "gb10", "memory_bytes": 130_663_886_848, "strict": True, "sm_count": None}
    device = device_from_config(DEVICES, facts)
    assert (device.memory_bytes, device.strict, device.sm_count) == (130_663_886_848, True, 48)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"id": "b200", "memory_gb": 180}, r"hardware\.memory_gb: not a fact"),
        ({"id": "b200", "memory_bytes": "lots"}, r"hardware\.memory_bytes: a positive integer"),
        ({"id": "b200", "memory_bytes": True}, r"hardware\.memory_bytes: a positive integer"),
        ({"id": "b200", "strict": 1}, r"hardware\.strict: true or false"),
        ({}, r"hardware\.id"),
        ({"id": "auto"}, "no machine executes"),
    ],
)
def test_bad_facts_are_refused_by_key(facts, message):
    with pytest.raises(ConfigError, match=message):
        device_from_config(DEVICES, facts)


def test_the_executing_machine_is_auto_and_lends_cpu_its_memory():
    cpu = replace(find_device(DEVICES, "cpu"), memory_bytes=64 * 2**30)
    assert device_from_config(DEVICES, {"id": "auto"}, cpu) == cpu
    assert device_from_config(DEVICES, {"id": "cpu"}, cpu) == cpu
    assert device_from_config(DEVICES, {"id": "cpu", "memory_bytes": 5}, cpu).memory_bytes == 5


def test_a_live_gpu_is_matched_by_capability_sms_and_nearest_memory():
    device = match_device(DEVICES, "9.0", 132, 150_000_000_000)
    assert (device.id, device.memory_bytes) == ("h200-sxm", 150_000_000_000)
    with pytest.raises(ConfigError, match=r"compute capability 7\.0, 80 SMs"):
        match_device(DEVICES, "7.0", 80, 32 * 2**30)


@pytest.mark.parametrize(("gib", "device_id"), [(39.4, "a100-40"), (79.3, "a100-80")])
def test_two_sizes_of_one_chip_are_told_apart_by_memory(gib, device_id):
    assert match_device(DEVICES, "8.0", 108, int(gib * 2**30)).id == device_id


@pytest.mark.parametrize(
    ("floor", "message"),
    [
        ({"at_least_bytes": -1, "seen_on": "a boot"}, "at_least_bytes"),
        ({"at_least_bytes": 1.5, "seen_on": "a boot"}, "at_least_bytes"),
        ({"at_least_bytes": 1, "seen_on": ""}, "seen_on"),
        ({"at_least_bytes": 1}, "seen_on: is missing"),
        ({"at_least_bytes": 1, "seen_on": "a boot", "at_most": 2}, "at_most"),
    ],
)
def test_a_broken_floor_of_the_driver_is_refused_by_key(floor, message):
    with pytest.raises(ConfigError, match=rf"x\.toml: class 'fast', driver_floor\.{message}"):
        with_table("driver_floor", floor)


def test_a_class_has_a_law_or_a_floor():
    """A floor beside a law would say nothing."""
    law = f"[class.memory]\n{_lines(LAW)}"
    floor = f"[class.driver_floor]\n{_lines({'at_least_bytes': 1, 'seen_on': 'a boot'})}"
    text = REGISTRY.replace('kind = "gpu"\n', f'kind = "gpu"\n{law}{floor}')
    with pytest.raises(ConfigError, match=r"class 'fast': a law .* and a floor"):
        parse_devices(text, "x.toml")


def test_the_empty_id_lists_all():
    with pytest.raises(ConfigError, match=r"near names: cpu, h100-sxm"):
        find_device(DEVICES, "")
