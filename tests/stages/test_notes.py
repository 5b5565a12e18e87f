"""What a run notes beside its verdict: weights that are rounded, lengths beyond the model's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from metpipe.engine.kernel_sets import open_kernel_sets
from metpipe.stages.live import Live
from metpipe.stages.notes import notes
from tests.engine.checkpoints.models import SIZES, weights, write_folder, write_gguf
from tests.runs import composed

CONFIG = {"model_type": "llama", **SIZES}


def noted(*overrides: str) -> list[str]:
    run = composed("pipeline=diff", "steps=4", *overrides)
    return list(notes(Live(run, open_kernel_sets("cpu", None))))


@pytest.fixture
def ids(tmp_path) -> str:
    """Prompts of a small vocabulary."""
    (tmp_path / "ids.jsonl").write_text("[1, 2, 3]\n")
    return f"prompts={tmp_path / 'ids.jsonl'}"


def folder(at: Path, dtype: torch.dtype, odd: str | None = None) -> str:
    """A checkpoint in one type, but for one tensor in f32."""
    stored = weights("llama", tied=False)
    for name, tensor in stored.items():
        stored[name] = tensor.to(torch.float32 if name == odd else dtype)
    return f"model.checkpoint={write_folder(at, stored, CONFIG)}"


def test_synthetic_weights_within_their_lengths_need_no_note():
    assert noted() == []


def test_a_checkpoint_in_bf16_needs_no_note(tmp_path, ids):
    assert noted(ids, folder(tmp_path / "model", torch.bfloat16)) == []


@pytest.mark.parametrize(("dtype", "name"), [(torch.float32, "F32"), (torch.float16, "F16")])
def test_weights_of_another_type_are_said_to_be_rounded(tmp_path, ids, dtype, name):
    (said,) = noted(ids, folder(tmp_path / "model", dtype))
    total = len(weights("llama", tied=False))
    assert said.startswith(f"the checkpoint stores {total} of {total} tensors in {name}; ")
    assert "rounded to bf16" in said


def test_only_the_tensors_of_another_type_are_counted(tmp_path, ids):
    (said,) = noted(ids, folder(tmp_path / "model", torch.bfloat16, odd="model.norm.weight"))
    assert f"1 of {len(weights('llama', tied=False))} tensors in F32; " in said


def test_a_gguf_says_its_types(tmp_path, ids):
    path = write_gguf(tmp_path / "model.gguf", "llama", weights("llama", tied=False))
    (said,) = noted(ids, f"model.checkpoint={path}")
    assert " tensors in F32" in said


@pytest.mark.parametrize(
    ("overrides", "name", "tokens"),
    [
        (("prompt_lengths=[10,61]", "prompts=2"), "prompt 1", 65),
        (("batch=[2,9]",), "batch, width 9", 72),
        (("verify=8",), None, None),
        (("verify=8", "steps=8"), "verify, K=8", 89),
    ],
    ids=["single", "batch", "verify that fits", "rows of a verify"],
)
def test_a_length_beyond_the_config_s_names_the_longest_case(overrides, name, tokens):
    limit = "model.config.max_position_embeddings=64"
    said = noted("model=tiny_dense", limit, *overrides)
    if name is None:
        assert said == []
        return
    assert said[0].startswith(f"{name} holds up to {tokens} tokens")
    assert "max_position_embeddings=64" in said[0]


def test_prompts_that_a_chunk_does_not_split_are_named():
    said = noted("prefill=[1,16,17]", "prefill_chunk=[1,16]")
    assert said == [
        "prefill of 1 token is not run in chunks of 1: a chunk is shorter than its prompt",
        "prefill of 1, 16 tokens is not run in chunks of 16: a chunk is shorter than its prompt",
    ]
    assert noted("prefill=[17,18]", "prefill_chunk=[1,16]") == []


@pytest.mark.parametrize(
    ("overrides", "cases"),
    [
        (("prefill=[16,300]",), "tokens: prefill, 300 tokens restored, 37 computed"),
        (("prompt_lengths=[9,40]", "prompts=2"), "prompt 1"),
    ],
    ids=["restored", "plain decoding"],
)
def test_prompts_longer_than_a_pass_are_named(overrides, cases):
    said = noted("serve.max_prefill_tokens=16", *overrides)[-1]
    assert said.startswith("serve.max_prefill_tokens=16: prompts longer than that are prefilled in")
    assert "in passes of 16 tokens: " in said
    assert cases in said
    assert "prefill, 16 tokens" not in said
    assert "prompt 0" not in said


def test_a_run_that_executes_nothing_has_no_such_note(tmp_path):
    checkpoint = folder(tmp_path / "model", torch.float32)
    run = composed("pipeline=memory", checkpoint)
    assert list(notes(Live(run, open_kernel_sets("cpu", None)))) == []
