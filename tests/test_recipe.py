"""recipe= and rerun=: expanded to what a user would have typed, or refused in a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from metpipe.errors import ConfigError
from metpipe.recipe import expand
from metpipe.resources import conf_dir, recipes_dir

TOML = """
[choose]
model = "qwen3_8b"
variant = ["circuit", "circuit_reference"]

[set]
steps = 4
serve.kv_cache_dtype = "bf16"
oracle = "transformers"
mtp = false
prompt_lengths = [15, 16]
"""
YAML = """
recipe_version: "1"
model: Qwen/Qwen3-8B
metadata: {note: "any: thing"}
defaults:
  max_model_len: 32768
  max_num_seqs: 4
  gpu_memory_utilization: 0.9
  kv_cache_dtype: fp8
  speculative: true
  num_speculative_tokens: 2
"""


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def toml(tmp_path) -> Path:
    return written(tmp_path / "r.toml", TOML)


@pytest.fixture
def yaml(tmp_path) -> Path:
    return written(tmp_path / "r.yaml", YAML)


def refusal(*argv: str) -> str:
    with pytest.raises(ConfigError) as caught:
        expand(argv)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_recipe_becomes_overrides_in_its_place(toml):
    assert expand(["seed=1", f"recipe={toml}", "steps=9"]).argv == [
        "seed=1",
        "model='qwen3_8b'",
        "variant=['circuit','circuit_reference']",
        "steps=4",
        "serve.kv_cache_dtype='bf16'",
        "oracle='transformers'",
        "mtp=false",
        "prompt_lengths=[15,16]",
        "steps=9",
    ]


def test_a_serve_recipe_is_rendered_to_serve_flags(yaml):
    assert expand([f"recipe={yaml}"]).argv == [
        "model=qwen3_8b",
        "serve.max_seq_len=32768",
        "serve.max_batch_size=4",
        "serve.gpu_memory_utilization=0.9",
        "serve.kv_cache_dtype='fp8'",
        "serve.speculative=true",
        "serve.num_drafts=2",
    ]


def test_later_arguments_win(toml):
    with initialize_config_dir(config_dir=str(conf_dir()), version_base=None):
        config = compose("config", overrides=expand([f"recipe={toml}", "steps=9"]).argv)
    assert config.steps == 9
    assert config.model.name == "qwen3_8b"
    assert list(config.variants) == ["circuit", "circuit_reference"]


def test_a_model_other_than_the_recipe_s_is_refused_on_either_side(toml):
    for argv in ([f"recipe={toml}", "model=smollm2"], ["model=smollm2", f"recipe={toml}"]):
        assert f"model=smollm2: recipe={toml} is a recipe for model=qwen3_8b" in refusal(*argv)


def test_the_recipe_s_own_model_may_be_repeated(toml, yaml):
    assert expand([f"recipe={toml}", "model=qwen3_8b"]).argv[-1] == "model=qwen3_8b"
    assert expand([f"recipe={yaml}", "model=qwen3_8b"]).argv[-1] == "model=qwen3_8b"


def test_a_checkpoint_without_a_choice_needs_its_folder(tmp_path):
    path = written(tmp_path / "r.yml", "model: org/Unheard-Of-7B\n")
    assert "no model choice is named 'unheard_of_7b'" in refusal(f"recipe={path}")
    argv = [f"recipe={path}", "model.checkpoint=/somewhere"]
    assert expand(argv).argv == ["model.checkpoint=/somewhere"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("r.toml", "steps = = 3", "not a TOML file"),
        ("r.toml", "steps = 3", "unknown key 'steps'; a recipe has the tables choose, set"),
        ("r.toml", "[sets]\nsteps = 3", "unknown key 'sets'"),
        ("r.toml", "choose = 3", "unknown key 'choose'"),
        ("r.toml", "[set]\nday = 2026-12-01", "a recipe cannot hold date"),
        ("r.yaml", "model: [a\ndefaults: 3", "not a YAML file"),
        ("r.yaml", "- a\n- b\n", "needs the keys model and defaults"),
        ("r.yaml", "defaults: {}", "needs the keys model and defaults"),
        ("r.yaml", "model: Qwen/Qwen3-8B\nflags: {}", "unknown key 'flags'"),
        ("r.yaml", "model: Qwen/Qwen3-8B\ndefaults: {port: 1}", "defaults.port is no serve flag"),
        ("r.yaml", "model: Qwen/Qwen3-8B\ndefaults: [1]", "defaults must be a table"),
        ("r.txt", "steps=3", "a recipe is a .toml or a .yaml file"),
    ],
)
def test_a_broken_recipe_is_one_line_that_names_it(tmp_path, name, text, said):
    path = written(tmp_path / name, text)
    line = refusal(f"recipe={path}")
    assert line.startswith(f"recipe={path}: ")
    assert said in line


def test_a_missing_recipe_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refusal("recipe=none.toml") == (
        f"recipe=none.toml: there is no such file (looked in {tmp_path})"
    )


@pytest.mark.parametrize("text", ["it's", 'say "so"', "back\\", "a=b", "a,b", "$x", "{x}", "a: b"])
def test_odd_strings_survive_hydra(tmp_path, text):
    literal = text.replace("\\", "\\\\").replace('"', '\\"')
    path = written(tmp_path / "r.toml", f'[set]\nmodel.checkpoint = "{literal}"\n')
    with initialize_config_dir(config_dir=str(conf_dir()), version_base=None):
        config = compose("config", overrides=expand([f"recipe={path}"]).argv)
    assert config.model.checkpoint == text


def test_rerun_replays_the_overrides(tmp_path):
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "overrides.yaml").write_text("- steps=4\n- variant=[circuit]\n")
    expanded = expand([f"rerun={tmp_path}", "seed=2"])
    assert expanded.argv == ["steps=4", "variant=[circuit]", "seed=2"]
    assert expanded.rerun == tmp_path


def test_rerun_of_no_run_is_refused(tmp_path):
    assert "give the folder of a run" in refusal(f"rerun={tmp_path}")


def test_rerun_of_a_broken_record_is_refused(tmp_path):
    (tmp_path / ".hydra").mkdir()
    for text in ("- [a\n", "{a: 3}\n", "3\n"):
        (tmp_path / ".hydra" / "overrides.yaml").write_text(text)
        assert refusal(f"rerun={tmp_path}").startswith(f"rerun={tmp_path}: ")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("hardware=h200-sxm", "hardware=h200_sxm"),
        ("hardware=h200-sxm,gb200-b200", "hardware=h200_sxm,gb200_b200"),
        ("hardware=b200", "hardware=b200"),
        ("model.checkpoint=/a-b/c", "model.checkpoint=/a-b/c"),
        ("hardware=glob(h*,exclude=h100-nvl)", "hardware=glob(h*,exclude=h100-nvl)"),
    ],
)
def test_a_device_s_id_may_have_dashes(typed, meant):
    assert expand([typed]).argv == [meant]


def test_a_device_s_id_may_have_dashes_in_a_recipe(tmp_path):
    path = written(tmp_path / "r.toml", '[choose]\nhardware = "h200-sxm"\n')
    assert expand([f"recipe={path}"]).argv == ["hardware='h200_sxm'"]


@pytest.mark.parametrize(
    "name", sorted(f.name for f in recipes_dir().iterdir() if f.suffix in (".toml", ".yaml"))
)
def test_every_shipped_recipe_composes(name):
    with initialize_config_dir(config_dir=str(conf_dir()), version_base=None):
        assert compose("config", overrides=expand([f"recipe={recipes_dir() / name}"]).argv)
    assert f"`{name}`" in (recipes_dir() / "README.md").read_text()


BOOT = Path(__file__).parent / "data" / "boots" / "moe-35b-fp8-recipe.toml"
BOOTED = "Qwen/Qwen3.6-35B-A3B-FP8"


def test_a_boot_brings_its_model_device_and_serve():
    argv = expand(["pipeline=ledger", f"ledger.boot={BOOT}", "workload.isl=7"]).argv
    assert argv[0] == "pipeline=ledger"
    assert argv[1:5] == [
        "model=qwen3_6_35b_a3b_fp8",
        "hardware=gb10",
        "memory.accounting=met",
        "memory.met_version=2",
    ]
    assert {"serve.max_seq_len=32768", "serve.speculative=true", "serve.num_drafts=1"} < set(argv)
    assert argv[-2:] == [f"ledger.boot={BOOT}", "workload.isl=7"]


def test_slots_that_the_engine_counts_itself_are_slots_that_follow(tmp_path):
    text = BOOT.read_text().replace("max_batch_size = 8", 'max_batch_size = "auto"')
    argv = expand([f"ledger.boot={written(tmp_path / 'b.toml', text)}"]).argv
    assert "slots=auto" in argv
    assert not [line for line in argv if line.startswith("serve.max_batch_size")]
    recipe = written(tmp_path / "r.yaml", "model: Qwen/Qwen3-8B\ndefaults: {max_num_seqs: auto}\n")
    assert expand([f"recipe={recipe}"]).argv == ["model=qwen3_8b", "slots=auto"]


def test_options_that_are_short_for_a_key():
    given = ["--per-node", "pipeline=memory", "--detail"]
    expanded = expand(given)
    assert expanded.argv == ["report.per_node=true", "pipeline=memory", "report.detail=true"]
    assert expanded.origins["report.detail=true"] == "--detail"


def test_no_boot_is_left_as_it_is():
    assert expand(["ledger.boot=null"]).argv == ["ledger.boot=null"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ledger.boot=nowhere.toml"], "there is no such file"),
        (["ledger.boot=a.toml,b.toml"], "give one boot, a sweep takes one line each"),
        (["ledger.boot="], "must be a path"),
        ([f"ledger.boot={BOOT}", "model=qwen3_8b"], "is a recipe for model=qwen3_6_35b_a3b_fp8"),
    ],
)
def test_a_boot_that_cannot_be_read_is_refused(argv, message):
    assert message in refusal(*argv)


BESIDE = "stands for the model, the device and the whole serve; leave it out"


@pytest.mark.parametrize(
    "typed",
    [
        "serve.kv_cache_dtype=fp8",
        "serve.kv_cache_dtype='bf16'",
        "serve.kv_cache_dtype=bf16",
        "serve.speculative=true",
        "serve.block_size=16",
        "++serve.block_size=16",
        "~serve.num_drafts",
        "serve=default",
        "model=qwen3_6_35b_a3b_fp8",
        "model.checkpoint=folder",
        "+model.config.num_experts=8",
        "hardware=gb10",
        "+hardware.memory_bytes=1",
        "memory.accounting=met",
        "memory.met_version=2",
        "slots=null",
        "tree_nodes=null",
        "capture_rows=0",
        "prompt_lookup=false",
    ],
)
@pytest.mark.parametrize("order", [1, -1], ids=["behind", "before"])
def test_whatever_a_boot_stands_for_is_refused_beside_it(typed, order):
    """Also at its default, and where it says what the boot says."""
    said = refusal(*[f"ledger.boot={BOOT}", typed][::order])
    assert said == f"{typed}: ledger.boot={BOOT} {BESIDE}"


def test_what_a_recipe_sets_is_refused_beside_a_boot_and_named(tmp_path):
    recipe = written(tmp_path / "r.toml", "[set.serve]\nblock_size = 16\n")
    said = refusal(f"recipe={recipe}", f"ledger.boot={BOOT}")
    assert said == f"serve.block_size=16 of recipe={recipe}: ledger.boot={BOOT} {BESIDE}"


def test_what_no_boot_says_may_stand_beside_it():
    beside = ["workload.isl=7", "hardware.strict=true", "report.detail=true", "steps=3"]
    assert expand([f"ledger.boot={BOOT}", *beside]).argv[-4:] == beside


def test_a_run_of_a_boot_is_repeated_and_nothing_of_its_serve_is_laid_over_it(tmp_path):
    lines = expand(["pipeline=ledger", f"ledger.boot={BOOT}"]).argv
    (tmp_path / ".hydra").mkdir()
    OmegaConf.save(OmegaConf.create(lines), tmp_path / ".hydra" / "overrides.yaml")
    assert expand([f"rerun={tmp_path}"]).argv == lines
    said = refusal(f"rerun={tmp_path}", "serve.block_size=16")
    assert said == f"serve.block_size=16: ledger.boot={BOOT} of rerun={tmp_path} {BESIDE}"


def test_two_boots_are_refused():
    other = BOOT.with_name("dense-27b-recipe-after.toml")
    same_model = BOOT.with_name("dense-27b-recipe-before.toml")
    said = refusal(f"ledger.boot={other}", f"ledger.boot={same_model}")
    assert said == f"ledger.boot={other}: ledger.boot={same_model} is a boot as well; {ONE}"


ONE = "give one of them"


def test_a_boot_of_a_model_without_a_choice_says_what_is_missing(tmp_path):
    path = written(tmp_path / "b.toml", BOOT.read_text().replace("Qwen3.6-35B", "Qwen9-35B"))
    assert "no model choice is named 'qwen9_35b_a3b_fp8'" in refusal(f"ledger.boot={path}")


PUBLISHED = {
    path.stem: str(OmegaConf.load(path)["checkpoint_id"])
    for path in sorted((conf_dir() / "model").glob("*.yaml"))
    if OmegaConf.load(path)["checkpoint_id"] is not None
}


@pytest.mark.parametrize(("choice", "checkpoint"), PUBLISHED.items())
def test_every_published_checkpoint_is_found_by_its_id(tmp_path, choice, checkpoint):
    recipe = written(tmp_path / "r.yaml", f"model: {checkpoint}\n")
    assert expand([f"recipe={recipe}"]).argv == [f"model={choice}"]
    boot = written(tmp_path / "b.toml", BOOT.read_text().replace(BOOTED, checkpoint))
    assert expand([f"ledger.boot={boot}"]).argv[0] == f"model={choice}"
