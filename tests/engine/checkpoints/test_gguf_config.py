"""The config that a gguf's metadata gives, and what it refuses to guess."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from metpipe.engine.checkpoints.gguf_config import ARCHITECTURES
from metpipe.engine.checkpoints.gguf_file import GgufFile, open_gguf
from metpipe.engine.checkpoints.gguf_rope import llama3_factors
from metpipe.errors import ConfigError

from .models import HEAD_DIM, SIZES, gguf_writer, weights, write_gguf


def _open(path: Path, architecture: str, writer: gguf.GGUFWriter, *, tied: bool = True) -> GgufFile:
    made = weights(architecture, tied=tied)
    return open_gguf(write_gguf(path, architecture, made, writer=writer))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_config_is_rebuilt(tmp_path: Path, architecture: str, tied: bool) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf_writer(path, architecture)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    config = dict(_open(path, architecture, writer, tied=tied).config)
    flags = {"llama": {"attention_bias": False, "mlp_bias": False}, "qwen2": {}}
    assert config == {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        **SIZES,
        "hidden_act": "silu",
        "rope_scaling": None,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        **flags.get(architecture, {"attention_bias": False}),
    }


def test_head_dim_may_differ_from_hidden_over_heads(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 2),
        (writer.add_key_length, 16),
        (writer.add_value_length, 16),
        (writer.add_layer_norm_rms_eps, 1e-6),
    ):
        add(value)
    config = _open(path, "qwen3", writer).config
    assert config["head_dim"] == 16
    assert config["num_key_value_heads"] == 2  # the format: as many as heads, unless stated
    assert config["rope_theta"] == 10000.0  # the format's default
    assert config["rms_norm_eps"] == 1e-6


def test_linear_and_yarn_scalings_are_carried_over(tmp_path: Path) -> None:
    linear = gguf_writer(tmp_path / "linear.gguf", "qwen2")
    linear.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    linear.add_rope_scaling_factor(4.0)
    scaling = _open(tmp_path / "linear.gguf", "qwen2", linear).config["rope_scaling"]
    assert scaling == {"rope_type": "linear", "factor": 4.0}

    yarn = gguf_writer(tmp_path / "yarn.gguf", "qwen3")
    yarn.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    yarn.add_rope_scaling_factor(4.0)
    yarn.add_rope_scaling_orig_ctx_len(128)
    scaling = _open(tmp_path / "yarn.gguf", "qwen3", yarn).config["rope_scaling"]
    expected = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert scaling == expected


@pytest.mark.parametrize(
    ("factor", "original", "theta", "dim"),
    [(8.0, 8192, 500000.0, 128), (32.0, 8192, 500000.0, 64), (8.0, 256, 500000.0, 26)],
)
def test_llama3_scaling_is_found_from_its_factors(
    tmp_path: Path, factor: float, original: int, theta: float, dim: int
) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_context_length, 512),
        (writer.add_embedding_length, dim * 2),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 2),
        (writer.add_rope_freq_base, theta),
        (writer.add_layer_norm_rms_eps, 1e-5),
    ):
        add(value)
    factors = llama3_factors(theta=theta, head_dim=dim, factor=factor, original=original)
    assert factors[0] == 1.0
    assert factors[-1] == factor
    writer.add_tensor("rope_freqs.weight", factors)
    opened = _open(path, "llama", writer)
    assert opened.config["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": original,
    }
    assert not any("rope" in name for name in opened.tensors)


def test_llama3_factors_are_the_published_ones() -> None:
    # Llama 3.1 8B: waves up to 8192/4 keep their frequency, waves over 8192 are divided by 8.
    factors = llama3_factors(theta=500000.0, head_dim=128, factor=8.0, original=8192)
    waves = 2 * np.pi * 500000.0 ** (np.arange(0, 128, 2) / 128)
    assert np.all(factors[waves < 2048] == 1.0)
    assert np.all(factors[waves > 8192] == 8.0)
    between = factors[(waves > 2048) & (waves < 8192)]
    assert len(between) > 3
    assert np.all((between > 1.0) & (between < 8.0))


def test_factors_of_one_scale_nothing(tmp_path: Path) -> None:
    writer = gguf_writer(tmp_path / "model.gguf", "llama")
    writer.add_tensor("rope_freqs.weight", np.ones(HEAD_DIM // 2, dtype=np.float32))
    assert _open(tmp_path / "model.gguf", "llama", writer).config["rope_scaling"] is None


def _unknown_factors(writer: gguf.GGUFWriter) -> None:
    writer.add_tensor("rope_freqs.weight", np.arange(1, HEAD_DIM // 2 + 1, dtype=np.float32))


def _two_scalings(writer: gguf.GGUFWriter) -> None:
    _unknown_factors(writer)
    writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
    writer.add_rope_scaling_factor(4.0)


def _longrope(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)


REFUSED = {
    "experts": (lambda w: w.add_expert_count(8), r"llama\.expert_count is 8"),
    "partial rotation": (
        lambda w: w.add_uint32("llama.attention.value_length", 8),
        r"llama\.attention\.value_length is 8",
    ),
    "vocabulary": (lambda w: w.add_vocab_size(41), r"llama\.vocab_size is 41"),
    "window": (
        lambda w: w.add_sliding_window(64),
        r"states llama\.attention\.sliding_window, which metpipe doesn't know",
    ),
    "logit scale": (lambda w: w.add_logit_scale(2.0), r"states llama\.logit_scale"),
    "longrope": (_longrope, r"rope\.scaling\.type is 'longrope'"),
    "linear without factor": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
        r"rope\.scaling\.factor isn't stated",
    ),
    "unknown factors": (_unknown_factors, r"rope_freqs\.weight scales the positions"),
    "two scalings": (_two_scalings, r"both rope_freqs\.weight and rope\.scaling"),
    "foreign tensor": (
        lambda w: w.add_tensor("blk.0.ffn_gate_inp.weight", np.ones((2, 2), dtype=np.float32)),
        r"tensor blk\.0\.ffn_gate_inp\.weight belongs to no dense",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_change_the_forward_is_refused_by_name(tmp_path: Path, case: str) -> None:
    add, message = REFUSED[case]
    writer = gguf_writer(tmp_path / "model.gguf", "llama")
    add(writer)
    with pytest.raises(ConfigError, match=f"model\\.gguf: .*{message}"):
        _open(tmp_path / "model.gguf", "llama", writer)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("add_head_count", "attention.head_count isn't stated"),
        ("add_layer_norm_rms_eps", "layer_norm_rms_epsilon isn't stated"),
        ("add_block_count", "block_count isn't stated"),
    ],
)
def test_a_size_that_is_not_stated_is_never_guessed(
    tmp_path: Path, missing: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, missing, lambda *_: None)
    writer = gguf_writer(tmp_path / "model.gguf", "llama")
    with pytest.raises(ConfigError, match=message):
        _open(tmp_path / "model.gguf", "llama", writer)


def test_head_counts_per_layer_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "add_head_count_kv", lambda *_: None)
    writer = gguf_writer(tmp_path / "model.gguf", "llama")
    writer.add_array("llama.attention.head_count_kv", [2, 1])
    with pytest.raises(ConfigError, match=r"head_count_kv is \[2, 1\], not one number over 0"):
        _open(tmp_path / "model.gguf", "llama", writer)
