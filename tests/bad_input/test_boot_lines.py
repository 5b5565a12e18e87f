"""Boots that cannot be read, or hold what no machine has, and what may not stand beside one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from metpipe.recipe import expand
from tests.bad_input.lines import has

BOOTS = Path(__file__).parents[1] / "data" / "boots"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[", ["not valid TOML"]),
        ("schema = 2\n", ["schema"]),
        (
            ("\nkv_blocks", "\nkv_blokcs"),
            ["boot.kv_blocks: is missing", "wrong as well: boot.kv_blokcs"],
        ),
        (("copies_version = 2", "copies_version = 7"), ["copies_version is 1 or 2"]),
        (('"Qwen/Qwen3.6-35B-A3B-FP8"', '"a/b"'), ["no model choice is named 'b'"]),
        (('hardware = "gb10"', 'hardware = "gb11"'), ["hardware=gb11"]),
        (("ssm_pool =", "ssm_poool ="), ["ssm_poool: not known here"]),
        (("\nkv_blocks =", "\nkv_blocks = 'many' #"), ["kv_blocks: must be a whole number, got"]),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str | tuple) else "",
)
def test_a_boot_that_is_none(refused, text, parts):
    whole = (BOOTS / "moe-35b-fp8-recipe.toml").read_text()
    if isinstance(text, tuple):
        assert text[0] in whole
        text = whole.replace(*text)
    Path("boot.toml").write_text(text)
    has(refused("pipeline=ledger", "ledger.boot=boot.toml"), *parts)


LONG = 10**31


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("weights", "[1.0, inf]", "weights #2: must be a finite number, got inf"),
        ("weights", "[1.0, 1e300]", "weights: the tolerance must be 0 to 100 percent, got [1.0"),
        ("weights", "[1.0, 101]", "weights: the tolerance must be 0 to 100 percent"),
        ("weights", "[1.0, true]", "weights #2: must be a number, got True"),
        ("weights", "[1.0, 1, 2]", "weights: must be two numbers, [MiB, tolerance in percent]"),
        ("kv", "[inf, 0.1]", "measured_mib.kv #1: must be a finite number, got inf"),
        ("kv", "[nan, 0.1]", "measured_mib.kv #1: must be a finite number, got nan"),
        ("arena", "[1e300, 0.1]", "measured_mib.arena: MiB must be 0 to 1073741824"),
        ("chunk_slack_gb", "inf", "boot.chunk_slack_gb: must be a finite number, got inf"),
        ("chunk_slack_gb", "1e31", "boot.chunk_slack_gb: must be at most"),
        ("ledger_total_gb", "inf", "boot.ledger_total_gb: must be a finite number, got inf"),
        ("ledger_total_gb", "1e300", "boot.ledger_total_gb: must be at most"),
        ("ledger_total_gb", "1e31", "boot.ledger_total_gb: must be at most"),
        ("ledger_total_gb", "1.5", "boot.ledger_total_gb=1.5: is below its own terms"),
        ("ledger_total_gb", "107.3", "adds up to 102489.6 MiB (107.5 GB); correct the unit"),
        ("ledger_total_gb", "1079", "boot.ledger_total_gb=1079: is more than the 130.7 GB of gb10"),
        ("kv_blocks", LONG, "boot.kv_blocks: must be at most 2147483647, got 1000"),
        ("draft_kv_blocks", LONG, "boot.draft_kv_blocks: must be at most 2147483647"),
        ("capture_rows", LONG, "boot.capture_rows: must be at most 2147483647"),
        ("outside_bytes", LONG, "boot.outside_bytes: must be at most 1125899906842624"),
        ("max_batch_size", LONG, "serve.max_batch_size: must be at most 2147483647"),
        ("block_size", 2**31 - 1, "boot.kv_blocks: 8764 blocks of serve.block_size=2147483647"),
        ("gpu_memory_utilization", "true", "serve.gpu_memory_utilization: must be a number"),
        ("gpu_memory_utilization", "'0.5'", "serve.gpu_memory_utilization: must be a number"),
        ("schema", "true", "schema: must be 1, a whole number, got True"),
        ("schema", "1.0", "schema: must be 1, a whole number, got 1.0"),
        ("copies_version", "9" * 5000, "not valid TOML"),
        ("checkpoint", "'a/b'", "no model choice is named 'b' for a/b, and a boot is checked"),
    ],
)
def test_a_boot_with_a_number_that_no_machine_has(refused, key, value, part):
    whole = (BOOTS / "dense-27b-recipe-after.toml").read_text()
    text = re.sub(rf"(?m)^{key} = .*$", f"{key} = {value}", whole, count=1)
    assert text != whole
    Path("boot.toml").write_text(text)
    message = refused("pipeline=ledger", "ledger.boot=boot.toml")
    has(message, "boot.toml", part)
    assert "workload" not in message
    assert "add model.checkpoint" not in message


@pytest.mark.parametrize(
    ("path", "said"),
    [("/dev/null", "it is no regular file"), (".", "it is a folder"), ("x.toml", "no such file")],
)
def test_a_boot_that_is_no_file(refused, path, said):
    has(refused("pipeline=ledger", f"ledger.boot={path}"), f"ledger.boot={path}: ", said)


@pytest.mark.parametrize(
    "line",
    ["serve.kv_cache_dtype=fp8", "serve.block_size=16", "slots=auto", "+hardware.sm_count=48"],
)
@pytest.mark.parametrize("order", [1, -1], ids=["behind", "before"])
def test_a_flag_beside_a_boot(refused, line, order):
    boot = f"ledger.boot={BOOTS / 'moe-35b-fp8-recipe.toml'}"
    message = refused("pipeline=ledger", *[boot, line][::order])
    has(message, f"{line}: {boot} stands for", "leave it out")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("pipeline=memory", "pipeline=memory leaves the ledger out; add pipeline=ledger"),
        ("pipeline=diff", "pipeline=diff leaves the ledger out; add pipeline=ledger"),
        ("pipeline=full", "which no diff runs, and pipeline=full has one; add pipeline=ledger"),
    ],
)
def test_a_boot_in_another_pipeline(refused, line, part):
    boot = f"ledger.boot={BOOTS / 'moe-35b-fp8-recipe.toml'}"
    has(refused(boot, line), "ledger.boot: ", part, f"set by the override '{boot}'")


def test_a_load_beyond_a_boot_is_not_told_to_raise_its_flags(refused):
    boot = f"ledger.boot={BOOTS / 'moe-35b-fp8-recipe.toml'}"
    message = refused("pipeline=ledger", boot, "workload.isl=9000000")
    has(message, f" of {boot}; lower it", "set by the override 'workload.isl=9000000'")
    assert "raise" not in message
    has(refused("pipeline=ledger", boot, "workload.concurrency=9999"), f" of {boot}; lower it")


def test_a_record_of_another_serve_than_its_boot(refused):
    """The boot's file was changed after the run whose record is run again."""
    boot = Path("boot.toml")
    whole = (BOOTS / "moe-35b-fp8-recipe.toml").read_text()
    boot.write_text(whole)
    lines = expand(["pipeline=ledger", f"ledger.boot={boot}"]).argv
    Path(".hydra").mkdir()
    Path(".hydra/overrides.yaml").write_text("".join(f'- "{line}"\n' for line in lines))
    boot.write_text(whole.replace('kv_cache_dtype = "bf16"', 'kv_cache_dtype = "fp8"'))
    message = refused("rerun=.")
    has(message, "serve.kv_cache_dtype: is 'bf16', and boot.toml was booted with 'fp8'; leave it")
