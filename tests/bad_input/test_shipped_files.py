"""Shipped data files that break: devices, copy rules, circuits and kernel sets, in a copy."""

from __future__ import annotations

import shutil

import pytest

from metpipe import resources
from metpipe.stages import met_plan, planned_model
from tests.bad_input.lines import HYBRID, MEMORY, MET, has


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Data folders of a copy, in which a file may be changed."""
    copy = tmp_path / "site"
    (copy / "metpipe").mkdir(parents=True)
    for folder in (resources.conf_dir(), resources.kernels_dir(), resources.recipes_dir()):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, copy / folder.name, ignore=ignored)
    monkeypatch.setattr(resources, "PACKAGE", copy / "metpipe")
    monkeypatch.setattr(met_plan, "MODELS", {})
    monkeypatch.setattr(planned_model, "PLANNED", {})

    def change(name: str, old: str, new: str) -> None:
        path = copy / "kernels" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


DEVICES, COPIES = "DEVICES.toml", "circuits/COPIES.toml"
BLOCK = "circuits/blocks/gated_delta_net.toml"


@pytest.mark.parametrize(
    ("name", "old", "new", "parts"),
    [
        (DEVICES, "util_ceiling = 0.85", "", ["class 'gb10', memory.util_ceiling: is missing"]),
        (
            DEVICES,
            "util_ceiling = 0.85",
            "util_ceiling = 1.5",
            ["class 'gb10', memory.util_ceiling: must be at most 1, got 1.5"],
        ),
        (
            DEVICES,
            "util_ceiling = 0.85",
            "util_ceiling = 0.85\nslab = 1",
            ["slab: there is no such key"],
        ),
        (
            DEVICES,
            "per_mille = 21",
            "per_mille = 1001",
            ["memory.driver_budget_per_mille: must be at most 1000, got 1001"],
        ),
        (DEVICES, "visible = 79.6", "visible = inf", ["memory_gib_visible: must be a finite"]),
        (DEVICES, "visible = 79.6", "visible = 1e300", ["memory_gib_visible: must be at most"]),
        (DEVICES, "schema_version = 1", "schema_version = true", ["schema_version: must be 1"]),
        (COPIES, "schema = 1", "schema = true", ["schema: must be 1, a whole number, got True"]),
        (COPIES, "schema = 1", "schema = 2", ["schema: must be 1, got 2"]),
        ("circuits/dense_gqa.toml", "schema = 1", "x = [", ["not valid TOML", "(at line"]),
        (COPIES, "count = 1", "count = 0", ["copy 'dense-fp8-to-nvfp4', count: must be above 0"]),
        (BLOCK, 'verify = "h_steps"\n', "", ["qwen3_5.toml: ", "l0.gdn.h", "has verify = None"]),
        (BLOCK, "{ssm_h_storage}", "{dtype}", ["qwen3_5.toml: ", "'{dtype}', which no serve flag"]),
        (COPIES, 'speculative = "on"', "speculative = true", ["when.speculative: must be text"]),
        (
            COPIES,
            'speculative = "on"',
            'speculative = "yes"',
            ["never holds; it is one of on"],
        ),
        (COPIES, 'arch = ["qwen3_5"]', 'arch = ["qwen9"]', ["no circuit has the arch 'qwen9'"]),
        (COPIES, 'law = "', 'law = "x', ["is no law"]),
        (COPIES, 'section = "main"', 'section = "middle"', ["section"]),
        (COPIES, "linear:q", "linear:qq", ["names no role of a linear"]),
        (COPIES, "\n[[copy]]", '\n[[copy]]\nwhy = "x"', ["why"]),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_shipped_file_that_breaks(refused, shipped, name, old, new, parts):
    shipped(name, old, new)
    named = parts[0].partition(":")[0] if name == BLOCK else name.rpartition("/")[2]
    has(refused(*MET, *HYBRID), named, *parts)


def test_a_workspace_of_an_unknown_size_names_its_file(refused, shipped):
    shipped("hopper/FAMILIES.toml", "*q_heads", "*q_haeds")
    message = refused(*MEMORY, "hardware=h100_sxm", "model=qwen3_8b")
    has(message, "/hopper/FAMILIES.toml, workspace attention.", "names the dimension 'q_haeds'")
