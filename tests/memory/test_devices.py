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
    ],
)
def test_shipped_devices(device_id, memory_bytes, sm_count):
    device = find_device(DEVICES, device_id)
    assert (device.memory_bytes, device.sm_count) == (memory_bytes, sm_count)


def test_only_gb10_is_calibrated():
    assert [d.id for d in DEVICES.by_id.values() if d.driver is not None] == ["gb10"]


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
    ],
)
def test_a_memory_table_out_of_range_is_refused_by_key(change, message):
    with pytest.raises(ConfigError, match=rf"x\.toml: class\.1\.memory\.{message}"):
        with_law(LAW | change)


@pytest.mark.parametrize("key", LAW)
def test_a_memory_table_needs_every_key(key):
    table = {name: value for name, value in LAW.items() if name != key}
    with pytest.raises(ConfigError, match=rf"{key}: Field required"):
        with_law(table)


def with_law(table: dict[str, object]) -> Devices:
    """The registry below with a law for its fast class."""
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
    text = REGISTRY.replace('kind = "gpu"\n', f'kind = "gpu"\n[class.memory]\n{lines}')
    return parse_devices(text, "x.toml")


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
    with pytest.raises(ConfigError, match=r"compute capability 8\.0, 108 SMs"):
        match_device(DEVICES, "8.0", 108, 80 * 2**30)


def test_the_empty_id_lists_all():
    with pytest.raises(ConfigError, match=r"near names: cpu, h100-sxm"):
        find_device(DEVICES, "")
