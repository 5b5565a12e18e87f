"""A checkpoint as transformers opens it: rounded once, widened in place, refused with a reason."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from metpipe.errors import ConfigError
from metpipe.oracle import CheckpointFiles, OutsideModel, quiet
from tests.oracle.extra import needs_transformers
from tests.oracle.models import save_model

pytestmark = needs_transformers

TOKENS = (5, 9, 2, 7, 7, 1)


@pytest.fixture
def folder(tmp_path):
    return save_model(tmp_path / "model", "qwen2", 0)


def opened(folder):
    with quiet():
        return OutsideModel.open(CheckpointFiles(folder, None, "safetensors"), {})


def test_fp32_weights_are_the_stored_ones_rounded_to_bf16(folder):
    outside = opened(folder)
    outside.widen()
    stored = load_file(folder / "model.safetensors")
    held = dict(outside.model.named_parameters())
    assert set(held) == set(stored)
    for name, tensor in stored.items():
        assert not torch.equal(tensor, tensor.bfloat16().float())
        assert held[name].dtype == torch.float32
        assert torch.equal(held[name], tensor.bfloat16().float())


def test_rotary_frequencies_are_never_rounded(folder):
    outside = opened(folder)
    exact = 1000.0 ** (-torch.arange(0, 10, 2) / 10)
    frequencies = dict(outside.model.named_buffers())["model.rotary_emb.inv_freq"]
    assert torch.allclose(frequencies, exact, rtol=1e-6, atol=0)


def test_widening_holds_one_copy_of_a_tied_matrix(folder):
    outside = opened(folder)
    outside.widen()
    head, embedding = outside.model.lm_head.weight, outside.model.model.embed_tokens.weight
    assert head.data_ptr() == embedding.data_ptr()


def test_last_logits_are_those_of_a_forward_over_every_position(folder):
    outside = opened(folder)
    outside.widen()
    last_RV, all_RV = outside.logits(TOKENS, 2), outside.logits(TOKENS, len(TOKENS))
    assert last_RV.shape == (2, 211)
    assert torch.allclose(last_RV, all_RV[-2:], atol=1e-5)
    with torch.inference_mode():
        whole = outside.model(input_ids=torch.tensor([TOKENS])).logits[0]
    assert torch.allclose(all_RV, whole, atol=1e-5)


def test_attention_is_eager(folder):
    assert opened(folder).model.config._attn_implementation == "eager"


def test_missing_tensor_is_not_drawn_at_random(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"finds no model\.layers\.1\.mlp\.up_proj\.weight"):
        opened(folder)


def test_unknown_model_names_the_reason_and_the_file(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "from_tomorrow"}))
    with pytest.raises(ConfigError, match=r"can't read .*model \(.*from_tomorrow.*oracle=null"):
        opened(folder)
