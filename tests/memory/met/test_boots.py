"""Four boots of met's engine: every term inside its tolerance, every reserve line in agreement."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from metpipe.errors import ConfigError
from metpipe.memory import evaluate
from metpipe.memory.met.boot import BootTerm, Measured, at_boot, check_boot
from metpipe.memory.met.boot_toml import parse_boot
from metpipe.report.boot_section import boot_section

from .points import point_of

BOOTS = Path(__file__).parents[2] / "data" / "boots"
NAMES = sorted(path.stem for path in BOOTS.glob("*.toml"))
CHOICES = {
    "unsloth/Qwen3.8-27B-NVFP4": "qwen3_8_27b_nvfp4",
    "Qwen/Qwen3.6-35B-A3B-FP8": "qwen3_6_35b_a3b_fp8",
}
TERMS = ["weights", "kv", "ssm_pool", "snapshots", "arena", "gdn_two_phase"]
RESERVES = ["ssm_pool", "marconi", "ring", "carry", "driver"]


def boot_of(name):
    return parse_boot((BOOTS / f"{name}.toml").read_text(), f"{name}.toml")


def checked(boot):
    point = point_of(CHOICES[boot.checkpoint], boot.serve, number=boot.version)
    return check_boot(evaluate(at_boot(point, boot)), boot)


def test_there_are_four():
    assert len(NAMES) == 4


@pytest.mark.parametrize("name", NAMES)
def test_every_term_is_inside_its_tolerance(name):
    check = checked(boot_of(name))
    assert [term.term for term in check.terms] == TERMS
    assert [(term.term, term.error_percent) for term in check.terms if not term.agrees] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_reserve_line_is_printed_alike(name):
    check = checked(boot_of(name))
    assert [line.name for line in check.reserve] == RESERVES
    assert {line.name: line.predicted_mib - line.printed_mib for line in check.reserve} == (
        dict.fromkeys(RESERVES, 0)
    )


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("dense-27b-recipe-before", {"weights": 0.170, "kv": -0.001, "arena": 0.003}),
        ("dense-27b-default-tier-after", {"gdn_two_phase": -0.056, "snapshots": -0.002}),
        ("moe-35b-fp8-recipe", {"weights": 0.031, "arena": 0.005}),
    ],
)
def test_errors_that_are_known(name, errors):
    """The worst are a file that the rollup left out, and a ledger of one decimal."""
    found = {term.term: term.error_percent for term in checked(boot_of(name)).terms}
    assert {term: round(found[term], 3) for term in errors} == errors


def test_the_leaks_are_what_separates_the_two_recipe_boots():
    before, after = boot_of("dense-27b-recipe-before"), boot_of("dense-27b-recipe-after")
    terms = {boot.version: checked(boot).terms[0].predicted for boot in (before, after)}
    # the FP8 copies of the 48 recurrent layers have a scale of four bytes each
    assert terms[1] - terms[2] == (3200 + 1440 + 45) * 2**20 + 48 * 4
    wrong = replace(before, version=2)
    assert checked(before).terms[0].agrees
    assert not checked(wrong).terms[0].agrees


def test_buffers_of_speculation_agree_where_a_ledger_itemizes_them():
    boot = boot_of("dense-27b-recipe-after")
    measured = {"spec_buffers": replace(boot.measured["kv"], mib=322.0)}
    (term,) = checked(replace(boot, measured=measured)).terms
    assert term.agrees
    assert term.predicted / 2**20 == 320 + 0.75 + 1.25


def test_a_megabyte_too_much_is_seen():
    boot = boot_of("dense-27b-recipe-after")
    pools = replace(boot.pools, kv_blocks=boot.pools.kv_blocks + 10)
    missed = [term.term for term in checked(replace(boot, pools=pools)).terms if not term.agrees]
    assert missed == ["kv"]


def test_what_no_term_explains_is_stated():
    check = checked(boot_of("dense-27b-recipe-after"))
    # 107.9 decimal GB less the six terms, of which the captured and accepted rows are 322 MiB
    assert round(check.unattributed / 2**20, 1) == 411.9


def measuring(mib, tolerance, **serve):
    """The boot of 35B, whose ledger itemizes only snapshots; `serve` beside its flags."""
    boot = boot_of("moe-35b-fp8-recipe")
    measured = {"snapshots": Measured(mib, tolerance)}
    return replace(boot, measured=measured, serve={**boot.serve, **serve})


def test_nothing_measured_agrees_with_nothing_predicted():
    (term,) = checked(measuring(0.0, 0.0, enable_prefix_caching=False)).terms
    assert (term.predicted, term.error_percent, term.agrees) == (0, None, True)


def test_nothing_measured_misses_what_is_predicted_and_has_no_percentage():
    """However wide the tolerance: no share of nothing is 1020 MiB."""
    (term,) = checked(measuring(0.0, 100.0)).terms
    assert (term.error_percent, term.agrees) == (None, False)


@pytest.mark.parametrize(("predicted", "agrees"), [(52428, True), (52429, False)])
def test_nothing_is_what_a_ledger_of_one_decimal_logs_as_nothing(predicted, agrees):
    """Half of a tenth of a MiB is 52428.8 bytes."""
    assert BootTerm("kv", predicted, predicted, 0.0, None, 0.0).agrees is agrees


def test_a_tolerance_of_nothing_accepts_the_very_number():
    states = Measured(1755.0, 0.0)
    boot = boot_of("moe-35b-fp8-recipe")
    (term,) = checked(replace(boot, measured={"ssm_pool": states})).terms
    assert (term.predicted, term.agrees) == (1755 * 2**20, True)
    (off,) = checked(replace(boot, measured={"ssm_pool": replace(states, mib=1755.1)})).terms
    assert not off.agrees


@pytest.mark.parametrize(
    ("printed", "agrees"),
    [(455, False), (474, True), (475, True), (2000, True), (2479, True), (2480, False)],
)
def test_a_range_is_held_by_both_ends(printed, agrees):
    """On h100-sxm the driver is a range, in which no slack is charged."""
    boot = boot_of("dense-27b-recipe-after")
    boot = replace(boot, hardware="h100-sxm", reserve={"driver": printed})
    point = point_of(
        CHOICES[boot.checkpoint], boot.serve, number=boot.version, device=boot.hardware
    )
    (line,) = check_boot(evaluate(at_boot(point, boot)), boot).reserve
    assert (line.predicted_mib, line.predicted_high_mib) == (475, 2478)
    assert line.agrees is agrees


@pytest.mark.parametrize(
    ("measured", "error", "agrees"),
    [
        (90.0, 1000 / 90, False),
        (99.5, 50 / 99.5, True),
        (100.0, 0, True),
        (150.0, 0, True),
        (200.0, 0, True),
        (201.0, -100 / 201, True),
        (220.0, -2000 / 220, False),
    ],
)
def test_the_error_of_a_range_is_that_of_its_nearer_end(measured, error, agrees):
    boot = boot_of("dense-27b-recipe-after")
    point = point_of(CHOICES[boot.checkpoint], boot.serve, number=boot.version)
    report = evaluate(at_boot(point, boot))
    wide = [
        replace(term, low=100 * 2**20, high=200 * 2**20) if term.id == "kv" else term
        for term in report.terms
    ]
    boot = replace(boot, measured={"kv": Measured(measured, 1.0)}, reserve={})
    (term,) = check_boot(replace(report, terms=tuple(wide)), boot).terms
    assert term.error_percent == pytest.approx(error)
    assert term.agrees is agrees


def test_a_measured_nothing_is_read():
    boot = parse_boot(broken("snapshots = [1020.1, 0.5]", "snapshots = [0, 0.0]"), "B.toml")
    assert boot.measured["snapshots"] == Measured(0.0, 0.0)
    with pytest.raises(ConfigError, match="measured_mib"):
        parse_boot(broken("snapshots = [1020.1, 0.5]", "snapshots = [-0.1, 0.5]"), "B.toml")


AUTO = ("max_batch_size = 8", 'max_batch_size = "auto"')


@pytest.mark.parametrize(("said", "slots"), [("", 1), ("slots = 8\n", 8)])
def test_slots_that_a_boot_counted_itself(said, slots):
    """As many as sequences, of which a boot is looked at with one; or what it came to."""
    text = broken(*AUTO).replace("[boot]\n", f"[boot]\n{said}")
    boot = parse_boot(text, "B.toml")
    assert boot.slots_follow
    assert "max_batch_size" not in boot.serve
    point = at_boot(point_of(CHOICES[boot.checkpoint], boot.serve, number=2), boot)
    live = {row.local: row.units for row in evaluate(point).counts.states if row.holding == "live"}
    assert live["gdn.h"] == slots + 1
    (pool,) = (term for term in checked(boot).terms if term.term == "ssm_pool")
    assert pool.agrees == (slots == 8)
    note = boot_section(boot, checked(boot)).note
    assert note.startswith("it counted its slots itself") == (slots == 1)
    assert boot_section(boot_of("moe-35b-fp8-recipe"), checked(boot)).note == ""


def test_slots_are_said_once():
    with pytest.raises(ConfigError, match=r"^B\.toml: boot\.slots is what serve\.max_batch_size"):
        parse_boot(broken("[boot]\n", "[boot]\nslots = 8\n"), "B.toml")


def broken(old, new):
    text = (BOOTS / "moe-35b-fp8-recipe.toml").read_text()
    assert old in text
    return text.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema = 1", "schema = 2", "schema"),
        ('accounting = "met"', 'accounting = "vllm"', "accounting"),
        ("kv_blocks = 168652", "kv_blox = 168652", "kv_blox"),
        ("kv_blocks = 168652", "kv_blocks = 0", "kv_blocks"),
        ("kv = [", "kvs = [", "measured_mib.kvs: not known here; known are weights, kv"),
        ("ring = 0", "rings = 0", "reserve_mib.rings: not known here"),
        ("[57974.1, 0.1]", "[57974.1]", "measured_mib.kv"),
        ("copies_version = 2", "copies_version = 3", "copies_version is 1 or 2"),
        ("copies_version = 2", "copies_version = 2\nengine_version = 9", "engine_version one of"),
        ("[boot]", "[boot", "not valid TOML"),
    ],
)
def test_a_broken_file_is_refused(old, new, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_boot(broken(old, new), "B.toml")


def test_a_boot_that_itemizes_nothing_is_refused():
    text = (BOOTS / "moe-35b-fp8-recipe.toml").read_text()
    start, end = text.index("[measured_mib]"), text.index("[reserve_mib]")
    bare = text[:start] + "[measured_mib]\n\n" + text[end:]
    with pytest.raises(ConfigError, match="measured_mib"):
        parse_boot(bare, "B.toml")


def test_a_boot_of_a_later_engine_says_so():
    text = broken("copies_version = 2", "copies_version = 2\nengine_version = 3")
    boot = parse_boot(text, "B.toml")
    assert boot.version == 3
    arena = next(term for term in checked(boot).terms if term.term == "arena")
    # experts' gate and up are twice as wide: 2 x 64.125 MiB more
    assert not arena.agrees
    assert round(arena.error_percent * arena.measured_mib / 100) == 128
