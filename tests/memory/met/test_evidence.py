"""Of which terms boots speak: of the family, of a version that has the term alike, on gb10."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metpipe.memory import evaluate
from metpipe.memory.met.count import arena_sizes
from metpipe.memory.met.evidence import BOOTS, evidence, other_booted
from metpipe.memory.met.side import BootPools, Outside
from metpipe.memory.met.versions import VERSIONS, version

from .points import MIB, point_of

DENSE, MOE, NANO = "qwen3_8_27b_nvfp4", "qwen3_6_35b_a3b_fp8", "nemotron_3_nano_30b_a3b_nvfp4"
ARCHS = {DENSE: "qwen3_5", MOE: "qwen3_6_moe", NANO: "nemotron_h"}


def uncalibrated(report):
    return {term.id for term in report.terms if term.status == "uncalibrated"}


@pytest.mark.parametrize(
    ("choice", "number", "expected"),
    [
        (DENSE, 1, set()),
        (DENSE, 2, set()),
        (DENSE, 3, set()),  # no experts, and the rules of version 2
        (MOE, 1, {"copies"}),  # tables that were always built
        (MOE, 2, set()),
        (MOE, 3, {"arena"}),
        (NANO, 1, {"copies"}),
        (NANO, 2, set()),
        (NANO, 3, {"arena"}),
        ("qwen3_8b", 3, None),
    ],
)
def test_a_term_is_calibrated_where_a_booted_version_has_it_alike(choice, number, expected):
    report = evaluate(point_of(choice, {}, number=number, outside=0))
    everything = {term.id for term in report.terms} - {"driver"}
    assert uncalibrated(report) == (everything if expected is None else expected)


@pytest.mark.parametrize("choice", [MOE, NANO])
def test_an_arena_of_another_version_is_a_range_from_one_to_the_other(choice):
    booted, newest = (evaluate(point_of(choice, {}, number=number)) for number in (2, 3))
    before, arena = booted.term("arena"), newest.term("arena")
    assert before.low == before.high == arena.low
    point = point_of(choice, {}, number=3)
    shape, rows = point.met.model.shape, arena_sizes(point).padded
    # Gate and up of the chosen experts, two bytes more an element.
    assert arena.high - arena.low == 2 * 2 * rows * shape.top_k * shape.moe_inter
    (note,) = [note for note in newest.notes if "boots of" in note]
    assert f"boots of {ARCHS[choice]} ran version 2, and version 3 has the arena" in note
    assert not [note for note in booted.notes if "boots of" in note]
    assert "with version 2, and version 3 has it another way" in arena.source


def test_the_arena_of_the_documented_boot_grows_by_what_is_known():
    """32768 tokens and 8 sequences with a draft: 64.125 MiB more for each of gate and up."""
    serve = {"max_seq_len": 32768, "max_batch_size": 8, "speculative": True, "num_drafts": 1}
    arena = evaluate(point_of(MOE, serve, number=3)).term("arena")
    assert (arena.high - arena.low) / MIB == 128.25


def test_a_boot_is_judged_by_its_own_version_alone():
    """A range would let a boot of version 3 agree with what version 2 allocates."""
    point = point_of(MOE, {}, number=3)
    booted = replace(point, met=replace(point.met, pools=BootPools(100, 0)))
    arena = evaluate(booted).term("arena")
    assert arena.low == arena.high == evaluate(point).term("arena").high


def test_on_another_class_nothing_is_calibrated():
    report = evaluate(point_of(DENSE, {}, device="h100-sxm"))
    assert uncalibrated(report) == {term.id for term in report.terms}
    assert "held against boots of the 27B on gb10, and on no hopper" in report.term("kv").source


@pytest.mark.parametrize("arch", BOOTS)
@pytest.mark.parametrize("experts", [False, True])
def test_a_family_has_evidence_for_every_term_of_the_versions_that_were_booted(arch, experts):
    for number in BOOTS[arch].versions:
        for term in ("weights", "copies", "arena", "kv"):
            assert other_booted(term, arch, version(number), experts=experts) is None
            status, _ = evidence(term, arch, version(number), "gb10", experts=experts)
            assert status == "calibrated"


def test_a_new_version_is_unproven_in_what_it_changes():
    newer = replace(version(max(VERSIONS)), number=9, copies="COPIES.9.toml")
    said = {
        term: evidence(term, "qwen3_5", newer, "gb10", experts=False)[0]
        for term in ("copies", "arena", "kv")
    }
    assert said == {"copies": "uncalibrated", "arena": "calibrated", "kv": "calibrated"}


def test_outside_bytes_that_nobody_counted_are_not_calibrated():
    point = point_of(DENSE, {})
    unknown = replace(point, met=replace(point.met, outside=Outside(None, "the files are away")))
    report = evaluate(unknown)
    outside = report.term("outside")
    assert (outside.low, outside.high, outside.status) == (0, 0, "uncalibrated")
    assert outside.source == "not counted: the files are away"
    assert "outside bytes not counted: the files are away" in report.notes
    assert uncalibrated(report) == {"outside"}


def test_outside_bytes_that_are_known_to_be_none_are_calibrated():
    report = evaluate(point_of(DENSE, {}, outside=0))
    assert report.term("outside").status == "calibrated"
    assert not [note for note in report.notes if note.startswith("outside")]
