"""What no plan can be made of: loads, flags, formats, devices, boots, and shipped files that break.

A line each, in both accountings where both can be asked.
"""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import pytest

from metpipe import resources
from metpipe.recipe import expand
from metpipe.stages import met_plan, planned_model
from tests.bad_input.lines import MEMORY, has

BOOTS = Path(__file__).parents[1] / "data" / "boots"
MET = (*MEMORY, "memory.accounting=met", "hardware=gb10")
HYBRID = ("model=qwen3_8_27b_nvfp4",)
LINEARS = "quant_method: compressed-tensors, format: x, ignore: []"


def quantised(weights: str) -> str:
    """A compressed-tensors checkpoint whose linears are all stored so."""
    group = f"config_groups: {{group_0: {{targets: [Linear], weights: {{{weights}}}}}}}"
    return f"+model.config.quantization_config={{{LINEARS}, {group}}}"


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("slots=abc", ["slots: must be a whole number (at least 1) or auto, got 'abc'"]),
        ("slots=-3", ["slots: must be at least 1, got -3"]),
        ("serve.max_seq_len=abc", ["serve.max_seq_len: must be a whole number"]),
        ("serve.max_batch_size=auto", ["serve.max_batch_size: must be a whole number; slots=auto"]),
        ("hardware.memory_bytes=80", ["no such key", "with a plus: +hardware.memory_bytes=N"]),
        ("serve.max_batch_size=0", ["serve.max_batch_size: must be at least 1"]),
        ("serve.gpu_memory_utilization=1.5", ["must be at most 1, got 1.5"]),
        ("serve.gpu_memory_utilization=0", ["must be above 0, got 0"]),
        ("serve.block_size=0", ["serve.block_size: must be at least 1"]),
        ("serve.kv_cache_dtype=turbo", ["must be one of", "'turbo'"]),
        ("serve.kv_cache_dtype=nvfp4", ["one of 'bf16', 'f16', 'f32' or 'fp8', got 'nvfp4'"]),
        ("serve.ssm_h_dtype=null", ["serve.ssm_h_dtype: must be one of", "None"]),
        ("workload.concurrency=0", ["workload.concurrency: must be at least 1"]),
        ("workload.concurrency=9", ["workload.concurrency=9 is more than the 8 slots"]),
        ("workload.isl=0", ["workload.isl: must be at least 1"]),
        ("workload.osl=-5", ["workload.osl: must be at least 1"]),
        ("workload.isl=4096", ["4352 tokens, above serve.max_seq_len=4096"]),
        ("serve.max_seq_len=9999999999", ["serve.max_seq_len=9999999999: more than 2147483647"]),
        ("grid.isl=a..b", ["grid.isl: must be a number, a list, FIRST..LAST"]),
        ("grid.isl=9..1", ["grid.isl: must rise from FIRST to LAST"]),
        ("grid.isl=[5,5,7]", ["grid.isl: holds 5 more than once; name each number once"]),
        ("grid.isl=[0]", ["grid.isl.0: must be at least 1"]),
        ("grid.concurrency=9..20", ["grid: none of its 12 loads"]),
        ("grid.isl=1..2000000", ["grid.isl: has 2,000,000 numbers, above 1,000,000; give it a"]),
        ("grid.isl=1..100000000000", ["grid.isl: has 100,000,000,000 numbers", "larger STEP"]),
        ("serve.num_drafts=2", ["is read with serve.speculative=true, or with a list of Ks"]),
        ("serve.num_drafts=8", ["serve.num_drafts: must be at most 7, got 8"]),
        ("serve.mtp_max_seqs=2", ["with verify_batch, or with serve.speculative=true and memory."]),
        ("serve.mtp_max_seqs=129", ["serve.mtp_max_seqs: must be at most 128, got 129"]),
        ("serve.dflash_gamma=4", ["is read with serve.dflash=true; add that, or leave it out"]),
        ("slots=9999999999", ["slots=9999999999: more than 2147483647"]),
        (
            "serve.max_batch_size=9999999999",
            ["serve.max_batch_size=9999999999: more than", "lower"],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("asked", [MEMORY, MET], ids=["metpipe", "met"])
def test_a_load_or_a_flag_that_no_serve_takes(refused, asked, line, parts):
    has(refused(*asked, *HYBRID, line), *parts, f"'{line}'")


@pytest.mark.parametrize("asked", [MEMORY, MET], ids=["metpipe", "met"])
def test_more_bytes_than_there_are_addresses(refused, asked):
    most = 2**31 - 1
    sizes = [f"serve.max_seq_len={most}", f"slots={most}", f"workload.concurrency={most}"]
    message = refused(*asked, *HYBRID, *sizes, f"workload.isl={most - 256}")
    has(message, "more than any memory has addresses for", "lower workload.concurrency")
    has(message, f"set by the override 'workload.isl={most - 256}'")


def test_a_grid_without_a_load_is_refused_before_a_stage_runs(refused, tmp_path):
    has(refused(*MEMORY, "grid.isl=900000..900010"), "grid: none of its 11 loads")
    assert not list(tmp_path.glob("runs/*/*/stages"))


def test_a_grid_too_large_is_refused_before_it_is_made(refused):
    """Under a limit that a range of a billion numbers would not stay below."""
    tracemalloc.start()
    try:
        has(refused(*MEMORY, "grid.isl=1..1000000000"), "has 1,000,000,000 numbers")
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["serve.mtp_max_seqs=0"], ["serve.mtp_max_seqs: must be at least 1"]),
        (["serve.num_drafts=-1"], ["serve.num_drafts: must be at least 1"]),
        (["serve.dflash=true"], ["serve.dflash=true: needs serve.dflash_gamma"]),
        (["tree_nodes=0"], ["tree_nodes: must be at least 1"]),
        (["capture_rows=-1"], ["capture_rows: must be at least 0"]),
        (["serve.weight_quantization=fp8"], ["met serves the tiers declared and nvfp4"]),
        (["serve.high_speed_swap=true"], ["has no term for it", "nothing says by how much"]),
        (["serve.tensor_parallel_size=2"], ["plans one device", "memory.accounting=metpipe"]),
        (["memory.met_version=9"], ["no such version; there are 1, 2, 3"]),
        (["hardware=mi300x"], ["has no kernels for the class cdna3", "or B300"]),
        (["hardware=auto"], ["met's engine runs on GPUs", "such as gb10"]),
        (["model=qwen3_8b", "serve.lm_head_dtype=fp8"], ["the checkpoint's head is bf16"]),
        (["model=qwen3_8b", "serve.speculative=true"], ["has no draft head; leave it false"]),
        ([f"capture_rows={10**21}"], [f"capture_rows={10**21}: more than 2147483647"]),
        (
            ["serve.speculative=true", f"tree_nodes={10**21}"],
            [f"tree_nodes={10**21}: more than 2147483647"],
        ),
        (
            ["serve.dflash=true", "serve.dflash_gamma=4", "serve.num_drafts=2"],
            ["serve.num_drafts: sizes nothing beside serve.dflash=true", "leave it out"],
        ),
        (["tree_nodes=5"], ["tree_nodes: sizes the verify of a serve that speculates"]),
        (
            ["model=qwen3_8b", "capture_rows=64"],
            ["capture_rows=64: keeps hidden rows for a draft head, and the model has none"],
        ),
        (
            ["serve.expert_quantization=bf16"],
            ["serve.expert_quantization=bf16: no rule of COPIES.toml reads it for qwen3_5"],
        ),
        (
            ["model=qwen3_6_35b_a3b_nvfp4", "serve.expert_quantization=fp8"],
            ["serve.expert_quantization=fp8: no rule of COPIES.toml reads it for qwen3_6_moe"],
        ),
        (
            ["model=qwen3_8b", "serve.dflash_gamma=4", "serve.dflash=true"],
            ["serve.dflash=true: the drafter's own sizes are not known", "leave it false"],
        ),
    ],
    ids=lambda value: " ".join(value) if "=" in value[0] else "",
)
def test_what_mets_engine_does_not_serve(refused, lines, parts):
    has(refused(*MET, *HYBRID, *lines), *parts, f"{lines[-1]}'")


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["tree_nodes=5"], ["tree_nodes", "set memory.accounting=met", "'tree_nodes=5'"]),
        (["memory.accounting=vllm"], ["must be one of 'metpipe' or 'met', got 'vllm'"]),
        (["serve.enable_prefix_caching=true"], ["this engine allocates nothing for it yet"]),
        (["model=qwen3_8b", "serve.speculative=true", "serve.num_drafts=2"], ["no draft head"]),
        (["hardware=gb10", "+hardware.memory_bytes=0"], ["a positive integer is needed, got 0"]),
        (["hardware=gb10", "+hardware.sm_count=x"], ["hardware.sm_count: a positive integer"]),
        (
            ["hardware=gb10", "hardware.strict=true", "serve.gpu_memory_utilization=0.9"],
            ["0.9 is above the ceiling 0.85 of gb10", "lower it or set hardware.strict=false"],
        ),
        (
            [*MET, "hardware=b200", "hardware.require_calibrated=true"],
            ["hardware=b200: nobody calibrated b200", "no [memory] table", "for met's engine"],
        ),
        (
            [*MET, "hardware=h200_sxm", "model=qwen3_8b", "hardware.require_calibrated=true"],
            ["hopper was calibrated on metpipe's engine", "nobody calibrated met's there"],
        ),
        (
            ["hardware=gb10", "model=qwen3_8b", "hardware.require_calibrated=true"],
            ["gb10 was calibrated on met's engine", "nobody calibrated metpipe's there"],
        ),
        (
            ["hardware=h100_sxm", "model=qwen3_8b", "hardware.require_calibrated=true"],
            ["calibrated on metpipe's engine on h200-sxm, and nobody has on h100-sxm"],
        ),
        (
            [
                "hardware=h200_sxm",
                "model=qwen3_8b",
                "hardware.require_calibrated=true",
                "serve.tensor_parallel_size=2",
            ],
            ["with one rank, and nobody calibrated one of several"],
        ),
        (["model.checkpoint=org/name"], ["there is no file or folder 'org/name'"]),
        (["~model.config.vocab_size"], ["the key 'vocab_size' is missing", "as vocab"]),
        (
            ["model=tiny_hybrid", "~model.config.num_experts"],
            ["the key 'num_experts' is missing; the circuit needs it as experts"],
        ),
        (
            ["model=tiny_dense", f"model.config.hidden_size={10**15}"],
            ["model: its weights and their copies take 3868", "correct the sizes in its config"],
        ),
        (
            ["serve.speculative=true", "serve.num_drafts=2", "serve.mtp_max_seqs=9"],
            ["serve.mtp_max_seqs: is read with", "metpipe accounting verifies every sequence"],
        ),
        (
            ["model=qwen3_8b", quantised("num_bits: 8, type: int, strategy: channel")],
            ["model.config", "int"],
        ),
        (
            ["model=qwen3_8b", quantised("num_bits: 8, type: float, strategy: token")],
            ["model.config", "token"],
        ),
        (
            ["model=qwen3_8b", quantised("num_bits: 8, type: float")],
            ["model.config", "strategy"],
        ),
        (
            [
                "model=qwen3_8b",
                quantised("num_bits: 4, type: float, strategy: group, group_size: 7"),
            ],
            ["a width of 4096 is no multiple of the 7"],
        ),
    ],
    ids=lambda value: value[-1][:40] if "=" in value[0] else "",
)
def test_what_cannot_be_planned(refused, lines, parts):
    has(refused(*MEMORY, *lines), *parts)


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


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """Data folders of a copy, in which a file may be changed."""
    copy = tmp_path / "site"
    (copy / "metpipe").mkdir(parents=True)
    for folder in (resources.conf_dir(), resources.kernels_dir(), resources.recipes_dir()):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(folder, copy / folder.name, ignore=ignored)
    monkeypatch.setattr(resources, "PACKAGE", copy / "metpipe")
    monkeypatch.setattr(met_plan, "MODELS", {})
    monkeypatch.setattr(planned_model, "PLANNED", {})

    def change(name: str, old: str, new: str) -> None:
        path = copy / "kernels" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


DEVICES, COPIES = "DEVICES.toml", "circuits/COPIES.toml"
BLOCK = "circuits/blocks/gated_delta_net.toml"


@pytest.mark.parametrize(
    ("name", "old", "new", "parts"),
    [
        (DEVICES, "util_ceiling = 0.85", "", ["class 'gb10', memory.util_ceiling: is missing"]),
        (
            DEVICES,
            "util_ceiling = 0.85",
            "util_ceiling = 1.5",
            ["class 'gb10', memory.util_ceiling: must be at most 1, got 1.5"],
        ),
        (
            DEVICES,
            "util_ceiling = 0.85",
            "util_ceiling = 0.85\nslab = 1",
            ["slab: there is no such key"],
        ),
        (
            DEVICES,
            "per_mille = 21",
            "per_mille = 1001",
            ["memory.driver_budget_per_mille: must be at most 1000, got 1001"],
        ),
        (COPIES, "schema = 1", "schema = 2", ["schema: must be 1, got 2"]),
        (COPIES, "count = 1", "count = 0", ["copy 'dense-fp8-to-nvfp4', count: must be above 0"]),
        (BLOCK, 'verify = "h_steps"\n', "", ["qwen3_5.toml: ", "l0.gdn.h", "has verify = None"]),
        (BLOCK, "{ssm_h_storage}", "{dtype}", ["qwen3_5.toml: ", "'{dtype}', which no serve flag"]),
        (COPIES, 'law = "', 'law = "x', ["is no law"]),
        (COPIES, 'section = "main"', 'section = "middle"', ["section"]),
        (COPIES, "linear:q", "linear:qq", ["names no role of a linear"]),
        (COPIES, "\n[[copy]]", '\n[[copy]]\nwhy = "x"', ["why"]),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_shipped_file_that_breaks(refused, shipped, name, old, new, parts):
    shipped(name, old, new)
    named = parts[0].partition(":")[0] if name == BLOCK else name.rpartition("/")[2]
    has(refused(*MET, *HYBRID), named, *parts)


def test_a_workspace_of_an_unknown_size_names_its_file(refused, shipped):
    shipped("hopper/FAMILIES.toml", "*q_heads", "*q_haeds")
    message = refused(*MEMORY, "hardware=h100_sxm", "model=qwen3_8b")
    has(message, "/hopper/FAMILIES.toml, workspace attention.", "names the dimension 'q_haeds'")
