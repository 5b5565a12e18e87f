"""Runs that plan met's engine: a boot's file, what-ifs, a local checkpoint's headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file

from metpipe.errors import ConfigError
from metpipe.pipeline import StageContext
from metpipe.pipeline.progress import Silent
from metpipe.stages.live import Live
from metpipe.stages.memory import run_memory
from tests.runs import composed, metpipe, report_of

BOOTS = Path(__file__).parent / "data" / "boots"
TERMS = {"weights", "kv", "ssm_pool", "snapshots", "arena", "gdn_two_phase"}


def planned(*overrides: str) -> dict[str, Any]:
    """The memory section of a run on gb10, without a process of its own."""
    run = composed("pipeline=memory", "memory.accounting=met", "hardware=gb10", *overrides)
    nowhere = Path("nowhere")
    live = Live(run, cast("Any", None))
    record = run_memory(StageContext(nowhere, {}, {}, Silent(), live))
    return cast("dict[str, Any]", record["memory"])


@pytest.mark.parametrize("name", ["dense-27b-recipe-before", "moe-35b-fp8-recipe"])
def test_a_boot_agrees(tmp_path, name):
    run = metpipe("pipeline=ledger", f"ledger.boot={BOOTS / name}.toml", cwd=tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    report = report_of(tmp_path)
    assert report["verdict"] == "PASS"
    assert {line["term"] for line in report["boot"]["terms"]} == TERMS
    assert all(line["agrees"] for line in report["boot"]["terms"] + report["boot"]["reserve"])
    assert len(report["boot"]["reserve"]) == 5
    assert report["executed_on"] is None
    for said in ("predicted", "measured", "error", "tolerance", "preflight", "met's engine"):
        assert said in run.stdout


def test_a_boot_that_misses_a_term_or_a_line_fails_and_names_it(tmp_path):
    text = (BOOTS / "moe-35b-fp8-recipe.toml").read_text()
    path = tmp_path / "off.toml"
    path.write_text(text.replace("kv = [57974.1", "kv = [57900.1").replace("ring = 0", "ring = 9"))
    run = metpipe("pipeline=ledger", f"ledger.boot={path}", cwd=tmp_path)
    assert run.returncode == 1
    assert "the boot does not agree with the plan: kv, reserve ring" in run.stdout


def test_other_flags_than_the_boots_are_refused(tmp_path):
    boot = f"ledger.boot={BOOTS / 'moe-35b-fp8-recipe.toml'}"
    run = metpipe("pipeline=ledger", boot, "serve.num_drafts=2", cwd=tmp_path)
    assert run.returncode == 2
    assert f"serve.num_drafts=2: {boot} stands for the model" in run.stderr


def test_a_boot_needs_the_ledger_and_its_own_accounting():
    boot = f"ledger.boot={BOOTS / 'moe-35b-fp8-recipe.toml'}"
    with pytest.raises(ConfigError, match="pipeline=memory leaves the ledger out"):
        composed(boot, "pipeline=memory", "memory.accounting=met")
    with pytest.raises(ConfigError, match="is a boot of met's engine"):
        composed(boot, "pipeline=ledger")


def test_a_plan_with_what_ifs():
    memory = planned(
        "model=qwen3_6_35b_a3b_nvfp4",
        "serve.weight_quantization=nvfp4",
        "serve.speculative=true",
        "slots=auto",
        "workload.concurrency=2",
        "tree_nodes=6",
        "capture_rows=100",
        "prompt_lookup=true",
    )
    held = {(row["local"], row["holding"]): row for row in memory["states"]}
    assert held["gdn.h", "live"]["units"] == 3
    assert held["gdn.h", "steps"]["units"] == 3 * 5
    assert held["head.tree_mask", "cache"]["bytes"] == 2 * 6 * 6
    assert held["head.draft_tokens", "cache"]["bytes"] == 2 * 6 * 4
    assert held["head.capture_hidden", "cache"]["bytes"] == 100 * 2048 * 2
    assert memory["totals"]["host"] == held["head.prompt_lookup", "host"]["bytes"] > 0
    # 1280 tokens and a tree of six nodes: 81 blocks each, and the dummy
    assert held["attn.k", "blocks"]["units"] == (2 * 81 + 1) * 16
    assert memory["inverse"]["max_concurrency"]["high"] == 128
    assert list(memory["header"]["facts"]) == [
        "engine", "defaults", "formats", "slots", "caches", "expert tables", "arena", "outside"
    ]  # fmt: skip
    copies = [copy for node in memory["nodes"] for copy in node["derived"]]
    terms = {term["id"]: term["low"] for term in memory["terms"]}
    assert sum(copy["bytes"] for copy in copies) == terms["copies"]
    assert sum(node["stored"] for node in memory["nodes"]) == terms["weights"]
    assert sum(node["state"] for node in memory["nodes"]) == terms["kv"] + terms["states"]


HEAD = ("serve.speculative=true", "serve.num_drafts=7", "serve.mtp_max_seqs=8")
DRAFTER = ("serve.dflash=true", "serve.dflash_gamma=7")


@pytest.mark.parametrize(
    ("asked", "offered"),
    [
        (HEAD, set()),
        (
            (*HEAD, "tree_nodes=8"),
            {
                "serve.speculative=false serve.num_drafts=null serve.mtp_max_seqs=null "
                "tree_nodes=null"
            },
        ),
        (
            (*DRAFTER, "serve.mtp_max_seqs=8"),
            {"serve.dflash=false serve.dflash_gamma=null serve.mtp_max_seqs=null"},
        ),
        (
            (*DRAFTER, "serve.num_drafts=2"),
            {"serve.dflash=false serve.dflash_gamma=null serve.num_drafts=null"},
        ),
        ((*HEAD, *DRAFTER), {"serve.dflash=false serve.dflash_gamma=null"}),
    ],
    ids=["head", "tree", "drafter", "drafter-and-depth", "both"],
)
def test_every_change_that_is_printed_composes_and_fits(asked, offered):
    """Just below the smallest share that fits; with both proposers, leaving out one may not do."""
    line = ("model=qwen3_8_27b_nvfp4", "slots=8", *asked)
    least = planned(*line)["inverse"]["min_utilization"]["surely"]
    tight = (*line, f"serve.gpu_memory_utilization={round(least - 0.001, 3)}")
    memory = planned(*tight)
    assert memory["totals"]["answer"] == "does not fit"
    found = {fix["override"] for fix in memory["fixes"]}
    switches = ("serve.speculative=", "serve.dflash=")
    assert {typed for typed in found if typed.startswith(switches)} == offered
    for fix in memory["fixes"]:
        totals = planned(*tight, *fix["override"].split())["totals"]
        assert totals["answer"] == fix["answer"] == "fits", fix
        assert totals["headroom_low"] == fix["headroom_low"], fix


def test_both_proposers_are_left_out_where_leaving_out_one_is_not_enough():
    """Of one slot: with more, the decode ring of a serve that does not speculate weighs more."""
    line = ("model=qwen3_8_27b_nvfp4", "slots=1")
    least = planned(*line)["inverse"]["min_utilization"]["surely"]
    tight = (*line, f"serve.gpu_memory_utilization={least}", *HEAD, *DRAFTER)
    memory = planned(*tight)
    assert memory["totals"]["answer"] == "does not fit"
    (typed,) = (fix["override"] for fix in memory["fixes"] if "speculative" in fix["override"])
    assert set(typed.split()) == {
        "serve.speculative=false",
        "serve.dflash=false",
        "serve.dflash_gamma=null",
        "serve.num_drafts=null",
        "serve.mtp_max_seqs=null",
    }
    assert planned(*tight, *typed.split())["totals"]["answer"] == "fits"


@pytest.mark.parametrize(
    ("choice", "kept"),
    [("qwen3_8_27b_nvfp4", "gdn.h"), ("nemotron_3_nano_30b_a3b_nvfp4", "mamba.h")],
)
def test_a_block_drafter_is_noted_and_what_its_verify_keeps_is_counted(choice, kept):
    """Of a model without a draft head as well: the drafter is a model of its own."""
    memory = planned(f"model={choice}", *DRAFTER)
    said = (
        "serve.dflash=true: the block drafter is a model of its own, and nothing says its sizes: "
        "its weights and its cache are not counted"
    )
    assert said in memory["header"]["notes"]
    held = {(row["local"], row["holding"]): row for row in memory["states"]}
    assert held[kept, "steps"]["units"] == 9 * 7  # 8 slots and the dummy, all drafts of each
    plain = planned(f"model={choice}")
    assert not any("drafter" in note for note in plain["header"]["notes"])
    assert (kept, "steps") not in {(row["local"], row["holding"]) for row in plain["states"]}


TINY = {
    "model_type": "qwen3", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 256,
    "hidden_act": "silu", "attention_bias": False, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
}  # fmt: skip


def test_a_folders_headers_say_what_is_outside(tmp_path):
    """Bound tensors are counted by their shapes; a norm and a tower of FP8 lie outside."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(TINY))
    tensors = {
        "model.embed_tokens.weight": torch.zeros(256, 64, dtype=torch.bfloat16),
        "model.layers.0.self_attn.q_proj.weight": torch.zeros(64, 64, dtype=torch.bfloat16),
        "model.norm.weight": torch.zeros(64, dtype=torch.bfloat16),
        "visual.tower.weight": torch.zeros(10, 7, dtype=torch.float8_e4m3fn),
    }
    save_file(tensors, folder / "model.safetensors")
    memory = planned(f"model.checkpoint={folder}")
    terms = {term["id"]: term["low"] for term in memory["terms"]}
    assert terms["outside"] == 64 * 2 + 10 * 7
    assert "from the headers of the checkpoint's files" in memory["header"]["facts"]["outside"]


def test_outside_bytes_that_nobody_knows_are_said_to_be_left_out():
    memory = planned("model=qwen3_8b")
    assert (
        "not counted: the checkpoint's files are not here" in memory["header"]["facts"]["outside"]
    )
    (outside,) = [term for term in memory["terms"] if term["id"] == "outside"]
    assert (outside["low"], outside["high"], outside["status"]) == (0, 0, "uncalibrated")
    assert outside["source"].startswith("not counted: the checkpoint's files are not here")
    assert [note for note in memory["header"]["notes"] if note.startswith("outside bytes not")]


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("hardware=cpu", "hardware=cpu: met's engine runs on GPUs"),
        ("serve.weight_quantization=fp8", "met serves the tiers declared and nvfp4"),
        ("memory.met_version=4", r"memory\.met_version=4: no such version"),
    ],
)
def test_what_cannot_be_planned_is_refused_by_name(override, said):
    with pytest.raises(ConfigError, match=said):
        planned("model=qwen3_8b", override)


def test_a_family_whose_arena_has_gaps_is_planned_and_says_so():
    memory = planned("model=gemma_4_31b_it_nvfp4")
    arena = next(term for term in memory["terms"] if term["id"] == "arena")
    assert arena["low"] < arena["high"]
    notes = "\n".join(memory["header"]["notes"])
    assert "no formula of met's arena speaks of attention of several widths" in notes
    assert "its copies are a range" in notes


def test_the_ledger_of_this_process_is_held_to_this_engine(tmp_path):
    """A plan of another engine says nothing of what this process allocates."""
    run = metpipe(
        "pipeline=ledger",
        "memory.accounting=met",
        "hardware=gb10",
        "model=tiny_dense",
        cwd=tmp_path,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    report = report_of(tmp_path)
    assert report["memory"]["header"]["accounting"] == "met"
    assert all(row["agrees"] for row in report["ledger"]["rows"])
