"""The config: every choice composes, every wrong value is refused with its origin."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ValidationError

from metpipe.config import (
    KEYS_OF_MODES,
    MODES,
    Provenance,
    Run,
    modes_of,
    nearest_key,
    validate,
    with_source,
)
from metpipe.errors import ConfigError
from metpipe.manual import keys
from metpipe.resources import conf_dir

CONF = conf_dir()
CHOICES = sorted(f"{f.parent.name}={f.stem}" for f in CONF.glob("*/*.yaml"))
GROUPS = ("model", "hardware", "serve", "variant", "pipeline", "diff")


@pytest.fixture(scope="module", autouse=True)
def _hydra() -> Iterator[None]:
    with initialize_config_dir(config_dir=str(CONF), version_base=None):
        yield


@cache
def composed_by_hydra(*overrides: str) -> DictConfig:
    return compose("config", overrides=list(overrides))


def composed(*overrides: str) -> dict[str, Any]:
    """What Hydra composes; values are laid over one composed config, which is much faster."""
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    choices = [o for o in parsed if o.key_or_group in GROUPS]
    config = composed_by_hydra(*(str(o.input_line) for o in choices)).copy()
    for override in parsed:
        if override not in choices:
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def provenance(*overrides: str) -> Provenance:
    pairs = [(line.partition("=")[0].lstrip("+"), line) for line in overrides]
    choices = {"model": "tiny_dense", "serve": "default", "variant": "all"}
    return Provenance(tuple(pairs), choices)


def run_of(*overrides: str) -> Run:
    return validate(composed(*overrides), provenance(*overrides))


def complaint(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        run_of(*overrides)
    return str(caught.value)


@pytest.mark.parametrize("choice", [c for c in CHOICES if c.partition("=")[0] in GROUPS])
def test_every_choice_composes_and_is_valid(choice):
    extra = ["rule=some_rule"] if choice == "pipeline=rule" else []
    assert run_of(choice, *extra).model.name


def test_all_is_every_variant_that_any_device_runs_and_gpu_the_whole_pool():
    pool = {file.stem for file in (CONF / "variants").glob("*.yaml")}
    assert set(run_of("variant=gpu").variants) == pool
    eager = {name for name, variant in run_of("variant=gpu").variants.items() if not variant.graphs}
    assert set(run_of("variant=all").variants) == eager
    chosen = {file.stem for file in (CONF / "variant").glob("*.yaml")} - {"all", "gpu", "none"}
    assert chosen == pool


def test_all_is_what_runs_unless_told_otherwise():
    assert composed() == composed("variant=all")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("variant=none", []),
        ("variant=circuit", ["circuit"]),
        ("variant=[circuit]", ["circuit"]),
        ("variant=[circuit,circuit_reference]", ["circuit", "circuit_reference"]),
    ],
)
def test_variants_are_chosen_singly_and_as_a_list(choice, names):
    assert list(run_of(choice).variants) == names


def test_a_variant_can_be_written_on_the_command_line():
    run = run_of("+variants.mine={forward: circuit, rules: {without: [qkv]}, expect: report}")
    assert run.variants["mine"].rules.without == ("qkv",)
    assert run.variants["mine"].kernels == "overlay"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("oracle=transformers", "oracle: is read by the diff, which pipeline=memory leaves out"),
        ("kernels=.", "kernels: is read by the diff and by pipeline=rule"),
    ],
)
def test_what_only_the_diff_reads_is_refused_without_it(line, said):
    assert said in complaint("pipeline=memory", line)


def test_graphs_are_refused_where_no_device_captures_launches():
    said = complaint("device=cpu", "+variants.mine={forward: circuit, graphs: true}")
    assert said.startswith("variants.mine.graphs: a CPU captures no launches")


def test_the_reference_variant_never_takes_the_user_s_kernels():
    assert run_of().variants["circuit_reference"].kernels == "builtin"
    assert run_of().variants["circuit"].kernels == "overlay"


def test_without_a_list_the_mode_is_single():
    assert run_of().diff.mode == "single"
    assert run_of("diff=single").diff.mode == "single"


@pytest.mark.parametrize("key", ["batch", "verify", "prefill"])
def test_the_mode_follows_from_the_list_that_is_given(key):
    run = run_of(f"{key}=[2,3]")
    assert (run.diff.mode, modes_of(run)) == (key, (key,))
    assert run_of("verify_batch=2", "verify_batch_ks=2").diff.mode == "verify_batch"


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_has_its_default_list(mode):
    run = run_of(f"diff={mode}")
    assert (run.diff.mode, modes_of(run)) == (mode, (mode,))
    given = [key for key in ("batch", "verify", "verify_batch", "prefill") if getattr(run, key)]
    assert given == ([mode] if mode in given else [])
    assert (mode in ("single", "swap", "invariance")) == (given == [])


def test_all_runs_every_mode_with_its_list():
    run = run_of("diff=all")
    assert modes_of(run) == MODES
    assert all(getattr(run, key) for key in ("batch", "verify", "verify_batch", "prefill"))
    assert run_of("diff=all", "batch=[3]").batch == (3,)


def test_two_lists_are_refused():
    assert "batch and verify ask for different modes" in complaint("batch=[2]", "verify=[2,3]")


def test_one_number_is_a_list_of_one():
    assert run_of("prompt_lengths=17").prompt_lengths == (17,)
    assert run_of("prompt_lengths=[15,16]").prompt_lengths == (15, 16)


def test_slots_auto_is_the_concurrency():
    run = run_of("slots=auto", "workload.concurrency=5")
    assert (run.slots, run.num_slots, run.slots_follow) == ("auto", 5, True)
    assert (run_of("slots=3").num_slots, run_of().num_slots) == (3, None)


def test_what_ifs_are_counted_by_the_accounting_that_knows_them():
    run = run_of(
        "memory.accounting=met",
        "serve.speculative=true",
        "tree_nodes=3",
        "capture_rows=5",
        "prompt_lookup=true",
    )
    assert (run.tree_nodes, run.capture_rows, run.prompt_lookup) == (3, 5, True)
    assert run_of().slots is None


def test_a_checkpoint_laid_over_a_choice_replaces_its_facts_and_its_name(tmp_path):
    run = run_of(f"model.checkpoint={tmp_path}")
    assert run.model.name == tmp_path.name
    assert run.model.config is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["steps=1"], "steps: must be at least 2, got 1"),
        (["steps=true"], "steps: must be a whole number, got True"),
        (["steps=8.0"], "steps: must be a whole number, got 8.0"),
        (["steps=eight"], "steps: must be a whole number, got 'eight'"),
        (["steps=null"], "steps: must be a whole number, got None"),
        (["prompts=0"], "prompts: must be at least 1, got 0"),
        (["prompts=-3"], "prompts: must be at least 1, got -3"),
        (["prompts=1.5"], "prompts: must be a whole number (at least 1) or the path of a .jsonl"),
        (["prompts=x.txt"], "prompts: must be a whole number (at least 1) or the path of a .jsonl"),
        (["prompts=none.jsonl"], "prompts: there is no file 'none.jsonl'"),
        (["prompt_lengths=[]"], "prompt_lengths: must hold at least one number"),
        (["prompt_lengths=[7,0]"], "prompt_lengths.1: must be at least 1, got 0"),
        (["prompt_lengths=[4090]"], "4106 tokens, over serve.max_seq_len=4096"),
        (["serve.gpu_memory_utilization=1.1"], "must be at most 1, got 1.1"),
        (["serve.gpu_memory_utilization=0"], "must be above 0, got 0"),
        (["serve.kv_cache_dtype=int3"], "serve.kv_cache_dtype: must be one of 'bf16', "),
        (["serve.rank=1"], "serve.rank: must be below the number of ranks, which is 1"),
        (["mtp=maybe"], "mtp: must be true, false or auto, got 'maybe'"),
        (["mtp=true"], "mtp: needs verify or verify_batch beside it"),
        (["prefill_chunk=4"], "prefill_chunk: needs prefill beside it"),
        (["tree_nodes=3"], "tree_nodes: sizes memory of speculative decoding, which the metpipe"),
        (["kernels=nowhere"], "kernels: there is no folder 'nowhere'"),
        (["resume=nowhere"], "resume: there is no folder 'nowhere'"),
        (["model.checkpoint=/nowhere"], "there is no file or folder '/nowhere'"),
        (["model.config=null"], "needs one of checkpoint, config and package, but none is given"),
        (["rule=x"], "rule: is read by pipeline=rule only"),
        (["pipeline=rule"], "pipeline=rule needs the id of the rule to judge: rule=ID"),
        (["variants.circuit.rules=7"], "must be reference, all, a list of rule ids, or {without:"),
        (["variants.circuit.rules={without: 3}"], "a list of rule ids, or {without: [ids]}"),
        (["variants.circuit.forward=legacy"], "is written by hand and takes no rules"),
        (["oracle=vllm"], "oracle: must be 'transformers', got 'vllm'"),
        (["memory.accounting=vllm"], "memory.accounting: must be one of 'metpipe' or 'met', got"),
        (["memory.met_version=1"], "memory.met_version: is read with memory.accounting=met only"),
        (["slots=many"], "slots: must be a whole number (at least 1) or auto, got 'many'"),
        (["slots=0"], "slots: must be at least 1, got 0"),
        (["+model.package={name: a}"], "model.package.version: is missing"),
        (["model.weights=zeros"], "model.weights: must be one of 'random' or 'successor', got"),
        (
            ["model.weights=successor", "model=smollm2"],
            "model.weights: says how weights are made for model.config, but none is given",
        ),
        (["model.name=135"], "model.name: must be text; quote a name that looks like a number"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_wrong_value_is_one_clear_line_that_names_the_override(overrides, said):
    text = complaint(*overrides)
    assert said in text
    assert f"set by the override '{overrides[0]}'" in text or overrides == ["pipeline=rule"]
    assert len(text.splitlines()) <= 6


def test_an_unknown_key_names_its_nearest_neighbour():
    said = complaint("+serve.block_sise=3")
    assert said.splitlines() == [
        "serve.block_sise: there is no such key, got 3",
        "    set by the override '+serve.block_sise=3'",
        "    did you mean serve.block_size?",
    ]
    assert nearest_key("stpes") == "steps"
    assert nearest_key("nothing.like.it") is None


def test_a_value_of_a_file_is_blamed_on_the_file():
    wrong = composed() | {"model": {"name": 7}}
    with pytest.raises(ConfigError, match=r"set by conf/model/tiny_dense\.yaml"):
        validate(wrong, provenance())
    with pytest.raises(
        ConfigError, match=r"conf/model/tiny_dense\.yaml \(the override 'model=tiny"
    ):
        validate(wrong, provenance("model=tiny_dense"))
    with pytest.raises(ConfigError, match=r"set by conf/config\.yaml"):
        validate(composed() | {"steps": 0}, provenance())


def test_the_last_override_of_a_key_is_blamed():
    said = complaint("workload.isl=1", "steps=9", "workload.isl=0")
    assert "set by the override 'workload.isl=0'" in said


def test_all_that_is_wrong_is_said_at_once():
    assert complaint("steps=1", "prompts=0").count("set by") == 2


@pytest.mark.parametrize(
    ("message", "source"),
    [
        ("serve.block_size=3: not honoured", "the override 'serve.block_size=3'"),
        ("workload.isl: too long", "conf/config.yaml"),
        ("hardware.foo: not a fact", "conf/config.yaml"),
        ("/some/folder: no config.json", None),
        ("nothing: of the config", None),
        ("steps: wrong\n    set by the override 'steps=1'", None),
    ],
)
def test_an_error_of_a_later_stage_also_names_who_set_the_key(message, source):
    said = with_source(message, provenance("serve.block_size=3"))
    assert said == (message if source is None else f"{message}\n    set by {source}")


def test_a_run_is_frozen():
    run = run_of()
    with pytest.raises(ValidationError, match="frozen"):
        run.steps = 3


def test_a_run_survives_json():
    run = run_of("variant=all", "prompt_lengths=[3,4]")
    assert Run.model_validate_json(run.model_dump_json()) == run


def tables(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for info in model.model_fields.values():
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from tables(info.annotation)


def test_the_keys_are_a_deliberate_list():
    """A new key on the command line is a decision: add it here, to conf/ and to docs/config.md."""
    assert sorted(Run.model_fields) == sorted(
        [
            "model",
            "hardware",
            "serve",
            "variants",
            "pipeline",
            "diff",
            "steps",
            "prompts",
            "prompt_lengths",
            "repeat",
            "batch",
            "fragment_slots",
            "verify",
            "mtp",
            "verify_batch",
            "verify_batch_ks",
            "ragged",
            "prefill",
            "prefill_chunk",
            "max_width",
            "slots",
            "tree_nodes",
            "capture_rows",
            "prompt_lookup",
            "workload",
            "grid",
            "device",
            "kernels",
            "rule",
            "oracle",
            "seed",
            "keep_logits",
            "resume",
            "state_check",
            "memory",
            "ledger",
            "report",
        ]
    )
    assert set(KEYS_OF_MODES) <= set(Run.model_fields)


def test_every_key_stands_in_config_yaml_with_a_comment_above_it():
    lines = Path(CONF, "config.yaml").read_text().splitlines()
    for key in set(Run.model_fields) - set(GROUPS) - {"workload", "memory", "ledger"}:
        at = next(n for n, line in enumerate(lines) if line.startswith(f"{key}:"))
        assert lines[at - 1].startswith("#"), key


def test_the_docs_list_every_key():
    text = (Path(__file__).parents[1] / "docs" / "config.md").read_text()
    missing = [key for key, _ in keys(Run) if f"`{key}`" not in text]
    assert missing == []


def test_no_target_is_called_from_conf_but_the_sweep_s_callback():
    found = [
        line.strip()
        for file in CONF.rglob("*.yaml")
        for line in file.read_text().splitlines()
        if "_target_" in line
    ]
    assert found == ["_target_: metpipe.app.Started"]
