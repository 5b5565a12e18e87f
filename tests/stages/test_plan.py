"""The stages of a run as a table: config in, names and edges out."""

from __future__ import annotations

from pathlib import Path

import pytest

from metpipe.config import Variant
from metpipe.pipeline.graph import order
from metpipe.stages.plan import plan
from tests.runs import composed

BOOT = Path(__file__).parents[1] / "data" / "boots" / "moe-35b-fp8-recipe.toml"
BOOTED = ("memory.accounting=met", f"ledger.boot={BOOT}")
DIFF = (
    "load",
    "reference",
    "repeat:1",
    "variant:circuit_reference",
    "control:circuit_reference",
    "variant:circuit",
    "control:circuit",
    "compare",
    "localize",
)


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ((), (*DIFF, "memory", "ledger")),
        (("pipeline=diff",), DIFF),
        (("pipeline=memory",), ("memory",)),
        (("pipeline=ledger",), ("load", "memory", "ledger")),
        (("pipeline=rule", "rule=qkv"), ("rule",)),
        ((*BOOTED, "pipeline=ledger"), ("memory", "boot")),
        (("pipeline=diff", "oracle=transformers"), (*DIFF, "oracle")),
        (
            ("pipeline=diff", "variant=circuit", "repeat=3"),
            (
                "load",
                "reference",
                "repeat:1",
                "repeat:2",
                "repeat:3",
                "variant:circuit",
                "control:circuit",
                "compare",
                "localize",
            ),
        ),
    ],
    ids=lambda value: " ".join(value)[:40],
)
def test_stages_of_a_run(overrides, names):
    stages = plan(composed(*overrides))
    assert tuple(stage.name for stage in stages) == names
    assert set(order(stages)) == set(names)


def test_every_forced_run_needs_the_reference_and_compare_needs_all_of_them():
    stages = {stage.name: stage for stage in plan(composed("pipeline=diff"))}
    for name, stage in stages.items():
        if name.partition(":")[1]:
            assert "reference" in stage.needs, name
    assert set(stages["compare"].needs) == set(stages) - {"compare", "localize"}
    assert "variant:circuit" in stages["control:circuit"].needs


def test_a_repeat_never_has_the_parameters_of_the_reference():
    stages = {stage.name: stage for stage in plan(composed("pipeline=diff", "repeat=2"))}
    replicas = [stages[name].params["replica"] for name in ("reference", "repeat:1", "repeat:2")]
    assert replicas == [0, 1, 2]


def test_a_reported_variant_has_no_control():
    run = composed("pipeline=diff", "variant=circuit")
    shown = Variant(forward="circuit", rules="all", expect="report")
    names = [s.name for s in plan(run.model_copy(update={"variants": {"circuit": shown}}))]
    assert "variant:circuit" in names
    assert "control:circuit" not in names


def test_a_folder_of_kernels_reaches_every_circuit_variant_but_the_reference_one(tmp_path):
    stages = {s.name: s for s in plan(composed("pipeline=diff", f"kernels={tmp_path}"))}
    assert stages["variant:circuit"].params["kernels"] == "overlay"
    assert stages["control:circuit"].params["kernels"] == "overlay"
    for name in ("reference", "repeat:1", "variant:circuit_reference"):
        assert stages[name].params["kernels"] == "builtin"


@pytest.mark.parametrize(
    ("variant", "kernels"),
    [
        ("forward: circuit, rules: all", "overlay"),
        ("forward: circuit, rules: all, kernels: builtin", "builtin"),
        ("forward: circuit, rules: reference, kernels: overlay", "builtin"),
        ("forward: legacy", "builtin"),
    ],
)
def test_a_variant_takes_the_folder_unless_it_says_otherwise(tmp_path, variant, kernels):
    written = f"+variants.mine={{{variant}}}"
    stages = {s.name: s for s in plan(composed("pipeline=diff", f"kernels={tmp_path}", written))}
    assert stages["variant:mine"].params["kernels"] == kernels


def test_without_a_folder_every_variant_runs_the_built_in_kernels():
    stages = plan(composed("pipeline=diff"))
    assert {s.params["kernels"] for s in stages if s.name.startswith("variant:")} == {"builtin"}
