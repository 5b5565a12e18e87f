"""Files of prompts and folders of kernels that are wrong."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from metpipe import app
from metpipe.errors import Exit
from tests.bad_input.lines import DIFF, has
from tests.runs import report_of

OVERLAY = Path(__file__).parents[1] / "data" / "overlay_ok"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]\n[1,\n", "p.jsonl, line 2, column 4: not JSON"),
        ("[1]\n\n[3000]\n", "p.jsonl, line 3: id 3000 is outside the vocabulary of 3000"),
        ('{"tokens": []}\n', "p.jsonl, line 1: the prompt is empty"),
        ('"text"\n', "p.jsonl, line 1: is text; synthetic weights"),
        ("\n", "p.jsonl: no prompt in it"),
    ],
    ids=["JSON", "vocabulary", "empty", "text", "none"],
)
def test_a_bad_prompt(refused, text, said):
    Path("p.jsonl").write_text(text)
    has(refused("prompts=p.jsonl", "pipeline=diff"), said, "set by the override 'prompts=p.jsonl'")


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(at: Path) -> None:
        text = (at / file).read_text()
        assert old in text
        (at / file).write_text(text.replace(old, new))

    return edit


def promise(**wrong: str) -> Callable[[Path], None]:
    """A folder that promises one axis, with one value wrong."""
    values = {"arch": "dense_gqa", "axis": "width", "text": "a row", "why": "as ever"} | wrong
    lines = [f'{key} = "{value}"' for key, value in values.items()]
    text = "\n".join(["schema = 1", "[[promise]]", "bitwise = false", *lines])
    return lambda at: (at / "INVARIANCE.toml").write_text(text)


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda at: (at / "HARDWARE.toml").unlink(), ["HARDWARE.toml: missing", "a kernel set is"]),
        (replaced("product_add.py", "def ", "def def "), ["product_add.py:", "not Python"]),
        (
            lambda at: (at / "extra.py").write_text("import os\n"),
            ["extra.py:1: imports os", "a kernel set may import"],
        ),
        (
            replaced("FUSIONS.toml", "priority =", "weird = 1\npriority ="),
            ["FUSIONS.toml, rule product_add: unknown key 'weird'", "the keys known here are"],
        ),
        (
            replaced("FUSIONS.toml", 'func = "product_add"', 'func = "nope"'),
            ["no kernel 'product_add.nope'", "write it as the function nope"],
        ),
        (
            replaced("HARDWARE.toml", 'class = "cpu"', 'class = "b200"'),
            ["HARDWARE.toml: class states b200", "leave it out or correct it"],
        ),
        (
            replaced("HARDWARE.toml", 'kind = "cpu"', 'kind = "cuda"'),
            ["HARDWARE.toml: kind states cuda", "leave it out or correct it"],
        ),
        (
            lambda at: (at / "INVARIANCE.toml").write_text("schema = 1\nfoo = 3\n"),
            ["INVARIANCE.toml: unknown key 'foo'"],
        ),
        (
            promise(axis="wide"),
            ["INVARIANCE.toml, promise #0: axis = 'wide' is not one of draft, neighbours, padding"],
        ),
        (
            promise(arch="dense"),
            ["INVARIANCE.toml: arch = 'dense' is no family; those are ", "dense_gqa"],
        ),
        (promise(why=" "), ["INVARIANCE.toml, promise #0: why is empty"]),
        (
            lambda at: (at / "FAMILIES.toml").write_text("schema = 1\nfoo = 3\n"),
            ["FAMILIES.toml: foo"],
        ),
        (
            replaced("FUSIONS.toml", 'x = "0.in.0"\n', ""),
            ["rule product_add", "refused the arguments", "'x'"],
        ),
    ],
    ids=[
        "no table", "syntax", "imports os", "unknown key", "missing kernel", "other class",
        "other kind", "promises", "axis", "family", "no reason", "families", "argument",
    ],
)  # fmt: skip
def test_a_bad_folder_of_kernels(refused, edit, parts):
    shutil.copytree(OVERLAY, "mine", ignore=shutil.ignore_patterns("__pycache__"))
    edit(Path("mine"))
    message = refused("kernels=mine", *DIFF, "variant=circuit")
    has(message, *parts, "set by the override 'kernels=mine'")


def test_a_folder_of_kernels_of_which_nothing_ran_proves_nothing(capsys):
    shutil.copytree(OVERLAY, "mine")
    edit = replaced("FUSIONS.toml", "priority = 120", 'priority = 120\nrequires = ["avx99"]')
    edit(Path("mine"))
    assert app.status_of(["kernels=mine", *DIFF]) is Exit.INCONCLUSIVE
    assert "kernels=mine: none of its rules took part" in report_of(Path.cwd())["reasons"][0]
    capsys.readouterr()
