"""The set's tables agree with its code: every rule's kernel exists and is given what it takes."""

from __future__ import annotations

import importlib
import inspect
import tomllib
from pathlib import Path

import pytest

from metpipe.circuit import parse_fusions
from metpipe.engine.promises import OF_A_HEAD, OF_THE_MACHINE, TRIED
from tests.kernels.cpu.conftest import FOLDER
from tests.kernels.cpu.test_promises import MODELS

RULES = parse_fusions((FOLDER / "FUSIONS.toml").read_text(), "FUSIONS.toml").rules
ROOT = FOLDER.parents[1]


def parameters(function):
    return set(inspect.signature(function).parameters)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_args_name_the_kernels_parameters_exactly(cpu, rule):
    for kernel in rule.kernels:
        assert kernel.name in cpu.functions
        assert set(kernel.args) == parameters(cpu.functions[kernel.name])


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_a_kernel_has_a_twin_with_the_same_names(cpu, module, rule):
    for kernel in rule.kernels:
        twin = getattr(module(f"naive.{kernel.module}"), kernel.func)
        outputs = parameters(cpu.functions[kernel.name]) - parameters(twin)
        assert parameters(twin) <= parameters(cpu.functions[kernel.name])
        assert all(".out." in str(kernel.args[name]) for name in outputs)


def test_every_microtest_exists():
    for rule in RULES.values():
        if rule.numerics.kind == "reference":
            continue
        path, name = rule.numerics.microtest.split("::")
        assert hasattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)


def test_a_reference_rule_is_one_op_that_legacy_calls():
    legacy = "".join(path.read_text() for path in (ROOT / "metpipe/engine/legacy").glob("*.py"))
    for rule in RULES.values():
        if rule.numerics.kind == "reference":
            assert len(rule.pattern) == 1
            called = {kernel.name for kernel in rule.kernels if f'"{kernel.name}"' in legacy}
            assert called, rule.id


def test_only_a_fused_kernel_stands_in_a_bit_identical_rule():
    reference = {
        kernel.name
        for rule in RULES.values()
        if rule.numerics.kind == "reference"
        for kernel in rule.kernels
    }
    for rule in RULES.values():
        if rule.numerics.kind != "reference":
            assert not reference & rule.kernel_names


def test_every_kernel_is_in_one_family_and_in_a_rule():
    families = tomllib.loads((FOLDER / "FAMILIES.toml").read_text())["family"]
    listed = [kernel for family in families for kernel in family["kernels"]]
    used = {name for rule in RULES.values() for name in rule.kernel_names}
    assert sorted(listed) == sorted(used)


def test_every_promise_says_why():
    promises = tomllib.loads((FOLDER / "INVARIANCE.toml").read_text())["promise"]
    axes = (*TRIED, *OF_THE_MACHINE)
    promised = sorted((promise["arch"], promise["axis"]) for promise in promises)
    without = [("dense_gqa", axis) for axis in OF_A_HEAD]
    every = {(arch, axis) for arch in MODELS for axis in axes}
    assert promised == sorted(every.difference(without))
    for promise in promises:
        assert set(promise) == {"arch", "axis", "bitwise", "text", "why"}


def test_files_are_small():
    for path in Path(FOLDER).rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name
