"""Small models saved by transformers itself, alive enough that each part of them matters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from metpipe.oracle import quiet

__all__ = ["MODELS", "save_model"]

VOCAB = 211
SIZES = {
    "vocab_size": VOCAB,
    "intermediate_size": 87,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def _llama() -> Any:
    """Odd sizes, three query heads a KV head, biases everywhere, llama3 scaled positions."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **SIZES,
        hidden_size=78,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=14,
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=LLAMA3,
        tie_word_embeddings=False,
    )


def _qwen2() -> Any:
    """Biases on q, k and v; the head is the embedding."""
    from transformers import Qwen2Config

    return Qwen2Config(
        **SIZES,
        hidden_size=60,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=True,
    )


def _qwen3() -> Any:
    """Norms of q and k; heads wider than hidden / heads."""
    from transformers import Qwen3Config

    return Qwen3Config(
        **SIZES,
        hidden_size=52,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=18,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
    )


def _mistral() -> Any:
    """head_dim is not hidden / heads."""
    from transformers import MistralConfig

    return MistralConfig(
        **SIZES,
        hidden_size=66,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        head_dim=10,
        sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
    )


MODELS: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "mistral": _mistral,
}


def save_model(folder: Path, name: str, seed: int, *, shard_size: str = "1GB") -> Path:
    """A Hugging Face folder of a model of MODELS with random fp32 weights."""
    with quiet():
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(MODELS[name]())
        _enliven(model, torch.Generator().manual_seed(seed))
        model.save_pretrained(folder, max_shard_size=shard_size)
    return folder


def _enliven(model: Any, draws: torch.Generator) -> None:
    """Logits of about 2 and an attention that looks at few tokens.

    As the library draws them attention is nearly uniform and a wrong angle would not show.
    """
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=draws)
        if parameter.dim() > 1:
            values *= (2.0 if "q_proj" in name else 1.0) * parameter.shape[1] ** -0.5
            values *= 2.0 if "embed" in name or "lm_head" in name else 1.0
        elif name.endswith(".weight"):
            values = 1.0 + 0.2 * values
        else:
            values *= 0.3
        parameter.data.copy_(values)
