"""The README's plan: its arithmetic is right, and it is what the command says."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.test_memory_runs import planned

README = (Path(__file__).parents[1] / "README.md").read_text()
SECTION = README.partition("## A plan that you can check by hand")[2].partition("\n## ")[0]
LINES = re.sub(r"\n +", " ", re.findall(r"```text\n(.*?)```", SECTION, re.DOTALL)[0])
FOUND = re.findall(r"^(\w+) +(.+?) += ([\d,]+)$", LINES, re.MULTILINE)
ALLOWED = (ast.Expression, ast.BinOp, ast.Constant, ast.operator)


def number(text: str) -> int:
    return int(text.replace(",", ""))


@pytest.fixture(scope="module")
def memory() -> dict[str, Any]:
    (command,) = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    program, *argv = shlex.split(command)
    assert program == "metpipe"
    return planned(*argv)


def test_there_is_a_line_for_every_term_that_takes_any(memory):
    said = {name for name, _, _ in FOUND}
    assert {term["id"] for term in memory["terms"] if term["high"]} < said
    assert said == {
        *(term["id"] for term in memory["terms"] if term["high"]),
        "blocks",
        "budget",
    }


@pytest.mark.parametrize(("name", "sum_", "result"), FOUND, ids=[name for name, _, _ in FOUND])
def test_the_arithmetic_is_right(name, sum_, result):
    tree = ast.parse(sum_, mode="eval")
    assert all(isinstance(node, ALLOWED) for node in ast.walk(tree)), sum_
    assert eval(compile(tree, name, "eval")) == number(result)


def test_it_is_what_the_plan_says(memory):
    said = {name: number(result) for name, _, result in FOUND}
    terms = {term["id"]: (term["low"], term["high"]) for term in memory["terms"]}
    blocks, budget = (said.pop(key) for key in ("blocks", "budget"))
    assert memory["pool"]["blocks_needed"] == blocks
    assert memory["totals"]["budget"] == budget
    assert {name: (size, size) for name, size in said.items()} == {
        name: span for name, span in terms.items() if span[1]
    }


def test_so_are_the_sum_and_what_is_left(memory):
    totals = memory["totals"]
    text = " ".join(SECTION.split())
    assert totals["low"] == totals["high"]
    assert f"The sum is {totals['low']:,} bytes" in text
    assert f"leaves {totals['headroom_low']:,}." in text
    assert totals["answer"] == "fits"
    assert "The plan fits." in text
