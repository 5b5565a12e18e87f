"""A saved model as the .gguf that llama.cpp's converter would write of it, matrices in f32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

from tests.engine.checkpoints.models import finish, gguf_name

__all__ = ["write_gguf"]


def write_gguf(path: Path, folder: Path) -> Path:
    """Write the model in `folder` (one safetensors file) to `path`."""
    config = json.loads((folder / "config.json").read_text())
    writer = _writer(path, config)
    for name, tensor in load_file(folder / "model.safetensors").items():
        writer.add_tensor(gguf_name(name), _stored(name, tensor, config))
    if config["rope_parameters"]["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _rope_factors(config))
    finish(writer)
    return path


def _writer(path: Path, config: dict[str, Any]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    return writer


def _stored(name: str, tensor: torch.Tensor, config: dict[str, Any]) -> np.ndarray:
    """Within each head of llama's q and k, rows j and j + d/2 become 2j and 2j + 1."""
    values = tensor.float().numpy()
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    for part, key in heads.items():
        if part in name and config["model_type"] == "llama":
            split = values.reshape(config[key], 2, config["head_dim"] // 2, -1)
            return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(values.shape)
    return values


def _rope_factors(config: dict[str, Any]) -> np.ndarray:
    """By what llama3 divides each frequency (Llama 3.1 release, `apply_scaling`)."""
    rope, factors = config["rope_parameters"], []
    for pair in range(config["head_dim"] // 2):
        wave = 2 * np.pi * rope["rope_theta"] ** (2 * pair / config["head_dim"])
        turns = rope["original_max_position_embeddings"] / wave
        if turns < rope["low_freq_factor"]:
            factors.append(rope["factor"])
        elif turns > rope["high_freq_factor"]:
            factors.append(1.0)
        else:
            span = rope["high_freq_factor"] - rope["low_freq_factor"]
            smooth = (turns - rope["low_freq_factor"]) / span
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)
