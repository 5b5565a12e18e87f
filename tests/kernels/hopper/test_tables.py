"""The set's tables agree with its code, read without importing it: no GPU and no Triton needed."""

from __future__ import annotations

import ast
import importlib
import tomllib
from pathlib import Path

import pytest

from metpipe.circuit import parse_fusions

FOLDER = Path(__file__).resolve().parents[3] / "kernels" / "hopper"
CPU = FOLDER.parent / "cpu"
RULES = parse_fusions((FOLDER / "FUSIONS.toml").read_text(), "FUSIONS.toml").rules
CPU_RULES = parse_fusions((CPU / "FUSIONS.toml").read_text(), "FUSIONS.toml").rules
ONLY_HERE = {
    "norm_rope_attend", "add_norm_qkv", "add_norm_gate_up_silu", "row_linear", "gdn_chunked",
}  # fmt: skip
OF_FEW_ROWS = {"router_top_k"}


def functions(folder: Path) -> dict[str, set[str]]:
    """Public function "module.func" -> its keyword parameters."""
    return {
        f"{path.stem}.{item.name}": {argument.arg for argument in item.args.kwonlyargs}
        for path in folder.glob("*.py")
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.FunctionDef) and not item.name.startswith("_")
    }


DEFINED, OF_CPU = functions(FOLDER), functions(CPU)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_args_name_the_kernels_parameters_exactly(rule):
    for kernel in rule.kernels:
        assert set(kernel.args) == DEFINED[kernel.name]
        assert rule.id in ONLY_HERE or DEFINED[kernel.name] == OF_CPU[kernel.name]


def test_it_has_the_cpu_set_s_rules():
    assert set(CPU_RULES) <= set(RULES)
    assert set(RULES) - set(CPU_RULES) == ONLY_HERE
    for name, rule in RULES.items():
        if name in ONLY_HERE:
            continue
        other = CPU_RULES[name]
        assert (rule.pattern, rule.modes) == (other.pattern, other.modes)
        assert rule.rows == other.rows or name in OF_FEW_ROWS
        assert rule.numerics.kind == other.numerics.kind


def test_every_microtest_exists():
    for rule in RULES.values():
        if rule.numerics.microtest is not None:
            path, name = rule.numerics.microtest.split("::")
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            assert hasattr(module, name)


def test_every_kernel_is_in_one_family_and_in_a_rule():
    families = tomllib.loads((FOLDER / "FAMILIES.toml").read_text())["family"]
    listed = [kernel for family in families for kernel in family["kernels"]]
    used = {name for rule in RULES.values() for name in rule.kernel_names}
    assert sorted(listed) == sorted(used)


def promised(folder: Path) -> dict[tuple[str, str, str | None], bool]:
    """(family, axis, lever) -> whether bits are promised; the CPU's own axes left out."""
    return {
        (promise["arch"], promise["axis"], promise.get("lever")): promise["bitwise"]
        for promise in tomllib.loads((folder / "INVARIANCE.toml").read_text())["promise"]
        if promise["axis"] not in ("threads", "vector_width")
    }


def test_without_a_lever_it_promises_what_the_cpu_set_does():
    here = {key: bitwise for key, bitwise in promised(FOLDER).items() if key[2] is None}
    assert here == promised(CPU)
    assert all(here.values())


def test_a_row_that_is_alone_differs_by_rows_from_one_beside_others():
    found = promised(FOLDER)
    broken = {"width", "slot", "neighbours", "verify", "prefill_decode", "draft"}
    for arch, has_head in (("dense_gqa", False), ("qwen3_5", True), ("qwen3_6_moe", True)):
        axes = broken if has_head else broken - {"draft"}
        behind = {key[1]: held for key, held in found.items() if key[::2] == (arch, "by_rows")}
        assert behind == dict.fromkeys(axes, False)


def test_files_are_small():
    for path in FOLDER.rglob("*.py"):
        assert len(path.read_text().splitlines()) <= 400, path.name
