"""INVARIANCE.toml has one reader, and what it does not say is refused, not left unjudged."""

from __future__ import annotations

import re

import pytest

from metpipe.circuit import parse_fusions
from metpipe.engine.promises import (
    OF_A_HEAD,
    OF_THE_MACHINE,
    TRIED,
    check_levers,
    check_promises,
    parse_promises,
)
from metpipe.engine.runners import LEGACY_FAMILIES
from metpipe.errors import ConfigError
from metpipe.resources import kernels_dir

FAMILIES = {"dense_gqa": False, "qwen3_5": True}
"""Family -> whether it may have a draft head."""
WITHOUT_A_HEAD = tuple(axis for axis in TRIED if axis not in OF_A_HEAD)


def text(*axes: str, arch: str = "dense_gqa") -> str:
    """A file that promises these axes of a family."""
    tables = [
        f'[[promise]]\narch = "{arch}"\naxis = "{axis}"\nbitwise = true\ntext = "a"\nwhy = "b"'
        for axis in axes
    ]
    return "\n".join(["schema = 1", *tables])


def narrowed(*lines: str, axis: str = "prefill_chunks") -> str:
    """A family with every axis, and one more promise of an axis with these lines beside."""
    more = "\n".join(lines)
    return f"{text(*WITHOUT_A_HEAD)}\n{text(axis).removeprefix('schema = 1')}\n{more}"


def checked(content: str, *, whole: bool = True) -> None:
    check_promises(parse_promises(content, "it"), "it", FAMILIES, whole=whole)


def test_every_axis_of_the_table_is_enough_and_those_of_the_machine_may_be_named():
    checked(text(*WITHOUT_A_HEAD))
    checked(text(*WITHOUT_A_HEAD, *OF_THE_MACHINE))
    checked(text(*TRIED, arch="qwen3_5"))
    checked("schema = 1")


def test_drafts_of_a_family_without_a_head_are_a_slip():
    said = "^it: dense_gqa has no draft head, and a promise with axis = 'draft'; leave it out"
    for whole in (True, False):
        with pytest.raises(ConfigError, match=said):
            checked(text(*TRIED), whole=whole)


@pytest.mark.parametrize("axis", TRIED)
def test_an_axis_that_a_shipped_set_leaves_out_is_refused(axis):
    partial = text(*(other for other in TRIED if other != axis), arch="qwen3_5")
    with pytest.raises(ConfigError, match=f"^it: qwen3_5 has no promise with axis = '{axis}'"):
        checked(partial)
    checked(partial, whole=False)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (text("widths"), "it, promise #0: axis = 'widths' is not one of draft"),
        (text("width", "width"), "it, promise #1: dense_gqa has the axis 'width' twice"),
        (text(*TRIED, arch="dense"), "it: arch = 'dense' is no family; those are dense_gqa"),
        (text("width").replace('why = "b"', 'why = ""'), "it, promise #0: why is empty"),
        (text("width").replace("bitwise = true\n", ""), "it, promise #0: the key 'bitwise'"),
        (narrowed('lever = "l"') + narrowed('lever = "l"').removeprefix(text(*WITHOUT_A_HEAD)),
         "it, promise #8: dense_gqa has the axis 'prefill_chunks' twice behind the lever 'l'"),
        (narrowed('lever = "l"', "multiple_of = 64", axis="width"), "it, promise #7: multiple_of"),
        (narrowed('lever = "l"', "multiple_of = 1"), "it, promise #7: multiple_of says at which"),
        (narrowed('lever = "l"', "multiple_of = 64").replace("true", "false"),
         "it, promise #7: multiple_of"),
    ],
    ids=["axis", "twice", "family", "no reason", "no word", "lever twice", "multiple of a width",
         "multiple of one token", "multiple where nothing holds"],
)  # fmt: skip
def test_a_slip_is_refused_in_a_folder_too(content, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}"):
        checked(content, whole=False)


def test_a_promise_behind_a_lever_stands_beside_the_one_without():
    content = narrowed('lever = "l"', "multiple_of = 64")
    checked(content)
    found = parse_promises(content, "it")
    assert [(p.lever, p.multiple_of) for p in found if p.axis == "prefill_chunks"] == [
        (None, 1),
        ("l", 64),
    ]


def test_an_axis_that_is_only_promised_behind_a_lever_is_left_out():
    partial = text(*(axis for axis in WITHOUT_A_HEAD if axis != "width"))
    behind = text("width").removeprefix("schema = 1") + '\nlever = "l"'
    with pytest.raises(ConfigError, match="it: dense_gqa has no promise with axis = 'width'"):
        checked(partial + behind)


def test_a_lever_of_no_rule_is_refused():
    promises = parse_promises(narrowed('lever = "fast"'), "it")
    check_levers(promises, "it", {"fast"})
    said = "no rule has the lever 'fast'; those with one: a, b"
    with pytest.raises(ConfigError, match=said):
        check_levers(promises, "it", {"b", "a"})


@pytest.mark.parametrize("name", ["cpu", "hopper"])
def test_a_shipped_set_s_levers_are_its_rules(name):
    folder = kernels_dir() / name
    rules = parse_fusions((folder / "FUSIONS.toml").read_text(), name)
    promises = parse_promises((folder / "INVARIANCE.toml").read_text(), name)
    check_levers(promises, name, rules.levers)


@pytest.mark.parametrize("name", ["cpu", "hopper"])
def test_a_shipped_set_speaks_of_every_family_that_is_executed(name):
    path = kernels_dir() / name / "INVARIANCE.toml"
    promises = parse_promises(path.read_text(), str(path))
    heads = {arch: arch != "dense_gqa" for arch in LEGACY_FAMILIES}
    check_promises(promises, str(path), heads, whole=True)
    assert {promise.arch for promise in promises} == set(LEGACY_FAMILIES)
