"""COPIES.toml: what a file may say, and what the shipped ones do."""

from __future__ import annotations

import re

import pytest

from metpipe.errors import ConfigError
from metpipe.memory.met.copies_toml import parse_copies
from metpipe.memory.met.versions import NEWEST, VERSIONS, version
from metpipe.resources import kernels_dir

FILE = """
schema = 1
[[copy]]
id = "a"
arch = ["qwen3_5"]
ops = ["linear:q", "lm_head"]
section = "main"
stored = ["fp8/channel"]
when = { lm_head_dtype = "bf16" }
law = "nvfp4/g16"
count = 1
site = "here"
"""


def shipped(name):
    return parse_copies((kernels_dir() / "circuits" / name).read_text(), name)


def test_a_rule_is_read():
    (rule,) = parse_copies(FILE, "C.toml")
    assert (rule.id, rule.served, rule.leaked, rule.count) == ("a", (), False, 1)
    assert rule.ops == ("linear:q", "lm_head")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ('id = "a"', 'idd = "a"', "idd"),
        ('"linear:q"', '"linear:qq"', "names no role of a linear"),
        ('"linear:q"', '"linear"', "names no role of a linear"),
        ('"linear:q"', '"rms_norm"', "reads no weight matrix"),
        ('"linear:q"', '"embed"', "reads no weight matrix"),
        ('"lm_head"]', '"lm_head:q"]', "takes no role"),
        ('["fp8/channel"]', '["fp8/row"]', "no format is spelled 'fp8/row'"),
        ('"nvfp4/g16"', '"nvfp4"', "'nvfp4' is no law"),
        ("lm_head_dtype", "head_dtype", "when tests 'head_dtype'"),
        ('"main"', '"body"', "section"),
        ("count = 1", "count = 0", "count"),
        ('arch = ["qwen3_5"]', "arch = []", "arch"),
        ('ops = ["linear:q", "lm_head"]', "ops = []", "ops"),
        ('site = "here"', 'site = ""', "site"),
        ("[[copy]]", "[[copy]", "not valid TOML"),
    ],
)
def test_a_broken_file_is_refused(old, new, message):
    assert old in FILE
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_copies(FILE.replace(old, new, 1), "C.toml")


def test_an_id_twice_is_refused():
    with pytest.raises(ConfigError, match="'a' appears more than once"):
        parse_copies(FILE + FILE.replace("schema = 1", ""), "C.toml")


def test_the_first_version_is_the_newest_with_three_leaks_and_tables_always_built():
    newest, first = shipped("COPIES.toml"), shipped("COPIES.1.toml")
    assert len(newest) == 24
    assert not any(rule.leaked for rule in newest)
    assert [rule.id for rule in first if rule.leaked] == [
        "dense-attn-bf16-dequant",
        "dense-gdn-out-fp8-predequant",
        "dense-gdn-ba-interleave-first",
    ]
    old = {rule.id: rule for rule in first if not rule.leaked}
    moved = [rule.id for rule in newest if old.pop(rule.id) != rule]
    assert moved == ["moe-nvfp4-expert-twin", "nemotron-expert-twin"]
    assert not old
    assert all(not rule.when for rule in first if rule.id in moved)


def test_versions_name_files_that_there_are():
    for entry in VERSIONS.values():
        assert shipped(entry.copies)
    assert version(NEWEST).expert_element_bytes == 4
    with pytest.raises(ConfigError, match=r"met_version=9: no such version; there are 1, 2, 3"):
        version(9)
