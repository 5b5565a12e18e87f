"""What no plan can be made of: loads, flags, formats and devices.

A line each, in both accountings where both can be asked.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from metpipe import app
from metpipe.errors import Exit
from tests.bad_input.lines import HYBRID, MEMORY, MET, has

BOOTS = Path(__file__).parents[1] / "data" / "boots"
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


DENSE = ("model=qwen3_8b",)
SPECULATING = ("serve.speculative=true", "serve.num_drafts=1")


@pytest.mark.parametrize(
    ("asked", "line", "why"),
    [
        ((*MEMORY, *DENSE), "serve.mtp_quantization=nvfp4", "as the checkpoint stores it"),
        (
            (*MEMORY, *HYBRID, *SPECULATING),
            "serve.mtp_quantization=nvfp4",
            "as the checkpoint stores it",
        ),
        ((*MEMORY, *HYBRID, *SPECULATING), "serve.ssm_rollback_mode=replay", "keeps snapshots"),
        ((*MEMORY, *HYBRID), "serve.ssm_decode_ring_slots=4", "this engine has no decode ring"),
        ((*MEMORY, *HYBRID), "serve.ssm_cache_slots=17", "this engine keeps no prefix cache"),
        ((*MEMORY, *DENSE), "serve.ssm_h_dtype=f16-pool", "the model has no recurrent states"),
        ((*MET, *DENSE), "serve.mtp_quantization=nvfp4", "the model has no draft head"),
        ((*MET, *HYBRID), "serve.mtp_quantization=nvfp4", "its draft head does not run"),
        ((*MET, *HYBRID), "serve.ssm_rollback_mode=replay", "nothing is verified"),
        (
            (*MET, *HYBRID),
            "serve.ssm_decode_ring_slots=4",
            "chooses the depth of its ring",
        ),
        ((*MET, *HYBRID), "serve.ssm_cache_slots=17", "no prefix cache is kept"),
        (
            (*MET, *DENSE, "serve.enable_prefix_caching=true"),
            "serve.ssm_cache_slots=17",
            "the model has no recurrent states",
        ),
        ((*MET, *DENSE), "serve.ssm_h_dtype=f16-pool", "the model has no recurrent states"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_flag_that_sizes_nothing(refused, asked, line, why):
    message = refused(*asked, line)
    has(message, f"{line}: sizes nothing of this plan, since ", why, "; leave it out", f"'{line}'")


def test_a_flag_of_a_recipe_that_sizes_nothing_is_noted(capsys):
    """A recipe is written for several models, so what one of them lacks is said and planned."""
    Path("r.toml").write_text(
        '[choose]\nmodel = "qwen3_8b"\nhardware = "gb10"\n[set]\nserve.ssm_cache_slots = 17\n'
    )
    status = app.status_of((*MEMORY, "recipe=r.toml"))
    said = " ".join(capsys.readouterr().out.split())
    assert status in (Exit.PASS, Exit.FAIL), said
    assert "serve.ssm_cache_slots=17 sizes nothing here: the model has no recurrent states" in said


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
            ["hardware=gb10", f"+hardware.memory_bytes={10**32}"],
            [f"hardware.memory_bytes={10**32}: more than 1125899906842624, the most that a device"],
        ),
        (
            ["hardware=gb10", f"+hardware.sm_count={10**20}"],
            [f"hardware.sm_count={10**20}: more than 65536, the most that a device"],
        ),
        (["serve.gpu_memory_utilization=true"], ["gpu_memory_utilization: must be a number"]),
        (["serve.gpu_memory_utilization='0.5'"], ["gpu_memory_utilization: must be a number"]),
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
            ["hidden_size = 1000000000000000 is more than 2147483647", "correct it"],
        ),
        (
            [
                "model=tiny_dense",
                f"model.config.hidden_size={2**31 - 8}",
                f"model.config.intermediate_size={2**31 - 8}",
            ],
            ["model: its weights and their copies take", "correct the sizes in its config"],
        ),
        (
            ["model=tiny_dense", f"model.config.num_hidden_layers={10**9}"],
            ["num_hidden_layers = 1000000000 is more than 10000 layers"],
        ),
        (
            ["model=tiny_hybrid", "model.config.num_experts_per_tok=13"],
            ["num_experts_per_tok = 13 is more than num_experts = ", "experts that there are"],
        ),
        (
            [
                "model=qwen3_8b",
                quantised("num_bits: 8, type: float, strategy: tensor").replace("Linear", "'re:['"),
            ],
            ["model.config", "quantization_config: 're:[' is no regular expression"],
        ),
        (
            [
                "model=qwen3_8b",
                "+model.config.quantization_config={quant_method: fp8, weight_block_size: [0, 0]}",
            ],
            ["weight_block_size = [0, 0] must be [rows, columns], both at least 1"],
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
            ["quantization_config: a width of 4096 is no multiple of the 7", "its group size"],
        ),
    ],
    ids=lambda value: value[-1][:40] if "=" in value[0] else "",
)
def test_what_cannot_be_planned(refused, lines, parts):
    has(refused(*MEMORY, *lines), *parts)
