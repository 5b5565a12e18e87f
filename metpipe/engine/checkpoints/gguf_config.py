"""Rebuilds the content of config.json from a gguf's metadata and tensors.

Every key of the architecture is used, checked, or refused by name: one that this doesn't know may
change the forward. Keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from metpipe.engine.checkpoints.gguf_header import GgufHeader
from metpipe.engine.checkpoints.gguf_keys import Keys
from metpipe.engine.checkpoints.gguf_names import ROPE_FREQS
from metpipe.engine.checkpoints.gguf_rope import llama3_scaling, plain_scaling
from metpipe.errors import ConfigError

__all__ = ["ARCHITECTURES", "rebuild_config"]

F32 = npt.NDArray[np.float32]

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# The format's own defaults, for keys that it calls optional.
DEFAULT_THETA = 10000.0


def rebuild_config(header: GgufHeader, rope_freqs: F32 | None) -> dict[str, object]:
    """The config.json content. `rope_freqs`: the f32 [head_dim / 2] tensor of that name, if any.

    ConfigError when the architecture, a key or the scaling of positions isn't understood.
    """
    architecture = _architecture(header)
    keys = Keys(header, architecture)
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        **_sizes(keys),
        **_forward(keys, architecture),
        **_biases(header, architecture),
        **_tokens(header),
    }
    config["rope_scaling"] = _rope_scaling(keys, config, rope_freqs)
    _check_redundant(keys, config)
    keys.refuse_rest()
    return config


def _architecture(header: GgufHeader) -> str:
    found = header.metadata.get("general.architecture")
    if not isinstance(found, str) or found not in ARCHITECTURES:
        raise ConfigError(
            f"{header.path}: its architecture is {found!r:.80}; metpipe reads gguf files of "
            f"{', '.join(ARCHITECTURES)} (mistral files say llama); use the safetensors folder"
        )
    return found


def _sizes(keys: Keys) -> dict[str, object]:
    heads = keys.count("attention.head_count")
    hidden = keys.count("embedding_length")
    stated = keys.find("attention.head_count_kv") is not None
    return {
        "hidden_size": hidden,
        "intermediate_size": keys.count("feed_forward_length"),
        "num_hidden_layers": keys.count("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.count("attention.head_count_kv") if stated else heads,
        "head_dim": _head_dim(keys, hidden, heads),
        "vocab_size": _vocab_size(keys.header),
        "max_position_embeddings": keys.count("context_length"),
    }


def _head_dim(keys: Keys, hidden: int, heads: int) -> int:
    stated = keys.find("attention.key_length") is not None
    if not stated and hidden % heads:
        raise ConfigError(
            f"{keys.header.path}: {keys.prefix}.embedding_length {hidden} isn't a multiple of "
            f"attention.head_count {heads}, and attention.key_length isn't stated"
        )
    return keys.count("attention.key_length") if stated else hidden // heads


def _vocab_size(header: GgufHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ConfigError(
            f"{header.path}: has no token_embd.weight, so it isn't a whole model (one part of a "
            "split file? merge them with llama-gguf-split --merge)"
        )
    return embedding.shape[0]


def _forward(keys: Keys, architecture: str) -> dict[str, object]:
    epsilon = keys.real("attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise ConfigError(
            f"{keys.header.path}: {architecture}.attention.layer_norm_rms_epsilon isn't stated, so "
            "its config can't be rebuilt; use the model's safetensors folder"
        )
    theta = keys.real("rope.freq_base")
    return {
        "hidden_act": "silu",
        "rms_norm_eps": epsilon,
        "rope_theta": DEFAULT_THETA if theta is None else theta,
        "tie_word_embeddings": "output.weight" not in keys.header.tensors,
        "torch_dtype": "bfloat16",
    }


def _biases(header: GgufHeader, architecture: str) -> dict[str, object]:
    """The bias flags that the model type's config has; qwen2's q, k and v have biases always."""
    attention = any(name.endswith("attn_q.bias") for name in header.tensors)
    if architecture == "llama":
        mlp = any(name.endswith("ffn_gate.bias") for name in header.tensors)
        return {"attention_bias": attention, "mlp_bias": mlp}
    return {"attention_bias": attention} if architecture == "qwen3" else {}


def _tokens(header: GgufHeader) -> dict[str, object]:
    pairs = (("bos_token_id", "bos_token_id"), ("eos_token_id", "eos_token_id"))
    found = {name: header.metadata.get(f"tokenizer.ggml.{key}") for name, key in pairs}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def _rope_scaling(
    keys: Keys, config: Mapping[str, object], rope_freqs: F32 | None
) -> dict[str, object] | None:
    stated = plain_scaling(keys)
    if rope_freqs is None:
        return stated
    if stated is not None:
        raise ConfigError(
            f"{keys.header.path}: both {ROPE_FREQS} and rope.scaling scale the positions, which no "
            "known model does; use the model's safetensors folder"
        )
    theta, head_dim = config["rope_theta"], config["head_dim"]
    assert isinstance(theta, float)
    assert isinstance(head_dim, int)
    return llama3_scaling(keys.header.path, rope_freqs, theta=theta, head_dim=head_dim)


def _check_redundant(keys: Keys, config: Mapping[str, object]) -> None:
    """Keys that restate a fact must agree with it; the experts of a dense model are none."""
    expected = {
        "vocab_size": config["vocab_size"],
        "rope.dimension_count": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "expert_count": 0,
        "expert_used_count": 0,
    }
    for key, value in expected.items():
        found = keys.find(key)
        if found is not None and found != value:
            raise ConfigError(
                f"{keys.header.path}: {keys.prefix}.{key} is {found!r:.80}, a dense model of its "
                f"sizes has {value}; metpipe can't run this file"
            )
