"""Right models pass the oracle, and each fault of ours that it is there for fails it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from metpipe.config import Package
from metpipe.engine.checkpoints import gguf_file
from metpipe.engine.checkpoints.package import package_place
from metpipe.errors import ConfigError
from metpipe.report.oracle_section import OracleSection
from metpipe.stages.reference import logits_path
from tests.oracle.extra import needs_transformers
from tests.oracle.gguf_models import write_gguf
from tests.oracle.models import MODELS, VOCAB, save_model
from tests.oracle.runs import Decoded, decode, live_of
from tests.runs import composed

pytestmark = needs_transformers

SHORT = ("prompt_lengths=[19]",)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Architecture -> its folder, seed 0."""
    root = tmp_path_factory.mktemp("models")
    return {name: save_model(root / name, name, 0) for name in MODELS}


def decoded(checkpoint: Path, folder: Path, *overrides: str, **config: object) -> Decoded:
    """Decode a checkpoint; `config` replaces keys of it for our engine alone."""
    live = live_of(f"model.checkpoint={checkpoint}", *overrides)
    if config:
        right = live.checkpoint()
        live._checkpoint = dataclasses.replace(right, config={**right.config, **config})
    return decode(live, folder)


def failed(section: OracleSection) -> bool:
    """Whether the section fails, and its sentence says with which numbers."""
    return not section.passed and "logits differ by up to" in section.sentence


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_model_made_by_transformers_passes(tmp_path, name, seed):
    checkpoint = save_model(tmp_path / "model", name, seed)
    section = decoded(checkpoint, tmp_path, "prompts=2").oracle()
    assert section.passed, section.sentence
    assert (section.name, section.reader) == ("transformers", "safetensors")
    assert [(row.tokens, row.positions) for row in section.prompts] == [(23, 9), (64, 9)]
    for row in section.prompts:
        # Noise that isn't small beside logits of about 2 would let anything pass.
        assert row.tolerance < 1.5
        assert 0 < row.rms_difference < row.rms_tolerance < 0.2


def test_two_shards_are_read(tmp_path):
    checkpoint = save_model(tmp_path / "model", "llama", 3, shard_size="200KB")
    assert len(list(checkpoint.glob("*.safetensors"))) >= 2
    assert decoded(checkpoint, tmp_path, *SHORT).oracle().passed


def test_synthetic_model_is_written_for_transformers(tmp_path):
    section = decode(live_of("model=tiny_llama", *SHORT), tmp_path).oracle()
    assert section.passed, section.sentence
    assert section.reader == "safetensors, of synthetic weights"


@pytest.mark.parametrize(
    ("name", "given"),
    [("llama", "attention_bias, mlp_bias, rope_scaling"), ("qwen3", "head_dim")],
)
def test_gguf_is_read_by_transformers_own_reader(tmp_path, folders, name, given):
    path = write_gguf(tmp_path / "model.gguf", folders[name])
    section = decoded(path, tmp_path, *SHORT).oracle()
    assert section.passed, section.sentence
    assert section.reader == "gguf_file"
    assert f"transformers reads no {given} from a .gguf" in section.sentence


def test_gguf_without_our_permutation_of_q_and_k_fails(tmp_path, folders, monkeypatch):
    path = write_gguf(tmp_path / "model.gguf", folders["llama"])
    monkeypatch.setattr(gguf_file, "hf_row_order", lambda heads, rows: np.arange(rows))
    assert failed(decoded(path, tmp_path, *SHORT).oracle())


def test_gguf_with_our_permutation_inverted_fails(tmp_path, folders, monkeypatch):
    path = write_gguf(tmp_path / "model.gguf", folders["llama"])
    right = gguf_file.hf_row_order
    monkeypatch.setattr(gguf_file, "hf_row_order", lambda *sizes: np.argsort(right(*sizes)))
    assert failed(decoded(path, tmp_path, *SHORT).oracle())


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1050.0}}),
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
        ("qwen3", {"rms_norm_eps": 1e-2}),
    ],
    ids=["theta off by a twentieth", "scaling left out", "epsilon"],
)
def test_config_that_we_misread_fails(tmp_path, folders, name, wrong):
    assert failed(decoded(folders[name], tmp_path, "prompts=2", **wrong).oracle())


@pytest.mark.parametrize("part", ["q_proj", "k_proj", "v_proj"])
def test_bias_that_we_leave_out_fails(tmp_path, folders, part):
    live = live_of(f"model.checkpoint={folders['qwen2']}", *SHORT)
    biases = live.model().weights.biases
    rows = [live.model().weights.bias(binding) for binding in biases if part in "".join(binding)]
    assert rows
    for bias in rows:
        bias.zero_()
    assert failed(decode(live, tmp_path).oracle())


def flip(path: Path, row: int, column: int | None = None) -> None:
    """Change the sign of one kept logit, the row's largest unless `column` is given."""
    rows_RV = np.load(path, mmap_mode="r+")
    logits_V = torch.from_numpy(rows_RV[row].copy()).view(torch.bfloat16)
    rows_RV[row, int(logits_V.argmax()) if column is None else column] ^= 0x8000
    rows_RV.flush()


def test_one_flipped_top_logit_fails_its_prompt_alone(tmp_path, folders):
    run = decoded(folders["mistral"], tmp_path, "prompt_lengths=[7,19]")
    assert run.oracle().passed
    flip(logits_path(run.reference, 1), row=8)
    section = run.oracle()
    assert failed(section)
    assert [row.passed for row in section.prompts] == [True, False]
    assert section.sentence.startswith("prompt 1: ")
    assert section.prompts[1].top1_agreement < 1


def test_reference_that_is_no_number_fails(tmp_path, folders):
    run = decoded(folders["mistral"], tmp_path, *SHORT)
    rows_RV = np.load(logits_path(run.reference, 0), mmap_mode="r+")
    rows_RV[3, 5] = 0x7FC0
    rows_RV.flush()
    section = run.oracle()
    assert not section.passed
    assert "the reference's logits are not all numbers" in section.sentence


def test_prompts_past_keep_logits_are_counted_out(tmp_path, folders):
    kept = 9 * VOCAB * 2
    run = decoded(folders["qwen3"], tmp_path, "prompt_lengths=[5,6,7]", f"keep_logits={kept}")
    section = run.oracle()
    assert section.passed
    assert [row.tokens for row in section.prompts] == [5]
    assert "past keep_logits, so not compared: 2 of 3 prompts" in section.sentence


def test_comparing_nothing_does_not_pass(tmp_path, folders):
    section = decoded(folders["qwen3"], tmp_path, "keep_logits=0").oracle()
    assert not section.passed
    assert section.prompts == ()
    assert section.sentence.startswith("nothing was compared")


@pytest.mark.slow
def test_trained_model_agrees(tmp_path):
    package = composed("model=smollm2").model.package
    assert isinstance(package, Package)
    if not package_place(package).exists():
        pytest.skip("SmolLM2 is not in the cache; `metpipe model=smollm2` fetches it once")
    live = live_of("model=smollm2", "steps=4", "prompt_lengths=[12]")
    section = decode(live, tmp_path).oracle()
    assert section.passed, section.sentence
    assert section.reader == "gguf_file"
    assert section.prompts[0].top1_agreement >= 0.8


def test_too_little_memory_is_said_before_it_is_taken(tmp_path, folders, monkeypatch):
    run = decoded(folders["qwen3"], tmp_path, *SHORT)
    monkeypatch.setattr("metpipe.oracle.outside_model.free_memory", lambda: 1 << 10)
    with pytest.raises(ConfigError, match=r"needs 0\.00 GiB in fp32, but 0\.00 GiB are free"):
        run.oracle()
    assert not list((tmp_path / "oracle").iterdir())
