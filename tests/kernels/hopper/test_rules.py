"""Every rule that claims equal bits, judged alone on the GPU, wherever it applies."""

from __future__ import annotations

from pathlib import Path

import pytest

from metpipe.circuit import parse_fusions
from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.report.rule_section import RuleSection
from metpipe.stages.rule import judge_rule

pytestmark = pytest.mark.gpu

FUSIONS = Path(__file__).resolve().parents[3] / "kernels" / "hopper" / "FUSIONS.toml"
RULES = parse_fusions(FUSIONS.read_text(), "FUSIONS.toml").rules.values()
CLAIMS = [rule.id for rule in RULES if rule.numerics.kind == "bit_identical"]

TABLE = """
[[rule]]
id = "sum_{name}"
pattern = [
  {{ op = "linear", roles = ["o", "down"] }},
  {{ op = "residual_add", keep = true }},
]
kernels = [{{ module = "sums_of_mine", func = "{name}" }}]
rows = [1, 8192]
modes = ["decode", "verify"]
numerics = "bit_identical"
microtest = "metpipe pipeline=rule"
priority = 120
cite = "linear, then residual_add of the rounded product"

[rule.args]
x = "0.in.0"
weight = "0.weight"
bias = "0.bias"
stream = "1.in.0"
y = "1.out.0"
"""
KERNELS = """
from metpipe_kernels.hopper.linear import linear_add

def right(*, x, weight, bias, stream, y):
    return linear_add(x=x, weight=weight, bias=bias, stream=stream, y=y)

def unrounded(*, x, weight, bias, stream, y):
    def launch():
        product = x.float() @ weight.float().T
        if bias is not None:
            product = product + bias.float()
        y.copy_(stream.float() + product)
    return launch
"""
HARDWARE = """
schema = 1
name = "mine"
class = "hopper"
kind = "cuda"
description = "A sum behind a linear."
formats = ["bf16"]
block_size = 16

[memory]
unified = false
line_bytes = 128
"""


@pytest.fixture(scope="module")
def sets() -> KernelSets:
    return open_kernel_sets("cuda", None)


@pytest.fixture
def mine(tmp_path: Path) -> KernelSets:
    """The built-in set, and a folder with two kernels for one chain."""
    rules = "schema = 1\n" + "".join(TABLE.format(name=name) for name in ("right", "unrounded"))
    names = ", ".join(f'"sums_of_mine.{name}"' for name in ("right", "unrounded"))
    families = f'schema = 1\n[[family]]\nname = "linear"\nkernels = [{names}]\n'
    for name, text in (
        ("FUSIONS.toml", rules),
        ("HARDWARE.toml", HARDWARE),
        ("FAMILIES.toml", families),
        ("INVARIANCE.toml", "schema = 1\n"),
        ("sums_of_mine.py", KERNELS),
    ):
        (tmp_path / name).write_text(text)
    return open_kernel_sets("cuda", str(tmp_path))


def judged(sets: KernelSets, rule_id: str) -> RuleSection:
    section = judge_rule(sets, rule_id)
    assert section.cases
    assert section.fused_ms_median, "no time was taken"
    assert section.chain_ms_median, "no time was taken"
    return section


@pytest.mark.parametrize("rule_id", CLAIMS)
def test_it_has_the_bits_of_its_chain(sets, rule_id):
    section = judged(sets, rule_id)
    assert section.passed, section.sentence


def test_a_kernel_of_a_users_folder_is_judged_on_the_gpu(mine):
    section = judged(mine, "sum_right")
    assert section.passed, section.sentence
    assert (section.fused_launches, section.chain_launches) == (1, 2)


def test_a_rounding_that_is_left_out_is_found(mine):
    section = judged(mine, "sum_unrounded")
    assert not section.passed
    assert "refuted, its bytes are not those of" in section.sentence
