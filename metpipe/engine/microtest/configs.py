"""The circuits a rule is tried in: small, with sizes that no tile, vector or block divides."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["AWKWARD", "at_realistic_size"]

Config = Mapping[str, object]

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def _config(
    model_type: str, hidden: int, inter: int, heads: tuple[int, int, int], **others: object
) -> Config:
    """A config.json of two layers; `heads`: query heads, key-value heads, head dim."""
    return {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_hidden_layers": 2,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "vocab_size": 101,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 256,
        "tie_word_embeddings": False,
        **others,
    }


AWKWARD: Mapping[str, Config] = {
    "plain": _config("mistral", 72, 100, (3, 1, 24), sliding_window=None),
    "normed": _config("qwen3", 72, 100, (3, 1, 24), attention_bias=False),
    "normed, biased": _config("qwen3", 33, 31, (3, 3, 10), attention_bias=True),
    "biased": _config("qwen2", 130, 67, (5, 5, 26), tie_word_embeddings=True),
    "all biased, tied": _config(
        "llama",
        71,
        67,
        (6, 2, 22),
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
        rope_scaling=LLAMA3_ROPE,
    ),
    "even": _config("llama", 64, 192, (4, 2, 16), attention_bias=False, mlp_bias=False),
}
"""What is special of it -> config.json. Odd sizes leave tails in every loop."""


def at_realistic_size(config: Config) -> Config:
    """The same features at the sizes of SmolLM2-135M, for times."""
    return {
        **config,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 2,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
    }
