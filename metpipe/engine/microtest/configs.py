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


def _hybrid(model_type: str, **sizes: object) -> Config:
    """A config.json of a recurrent layer and a gated attention, with a draft head."""
    return {
        "model_type": model_type,
        "layer_types": ["linear_attention", "full_attention"],
        "num_hidden_layers": 2,
        "linear_conv_kernel_dim": 4,
        "vocab_size": 101,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 512,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        **sizes,
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
    "recurrent": _hybrid(
        "qwen3_5_text",
        hidden_size=60,
        intermediate_size=87,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=18,
        linear_num_key_heads=2,
        linear_key_head_dim=26,
        linear_num_value_heads=6,
        linear_value_head_dim=19,
        tie_word_embeddings=True,
    ),
    "experts": _hybrid(
        "qwen3_5_moe_text",
        hidden_size=76,
        num_attention_heads=3,
        num_key_value_heads=1,
        head_dim=26,
        linear_num_key_heads=1,
        linear_key_head_dim=37,
        linear_num_value_heads=3,
        linear_value_head_dim=83,
        num_experts=7,
        num_experts_per_tok=3,
        moe_intermediate_size=22,
        shared_expert_intermediate_size=30,
    ),
    "even": _config("llama", 64, 192, (4, 2, 16), attention_bias=False, mlp_bias=False),
}
"""What is special of it -> config.json. Odd sizes leave tails in every loop."""


DENSE_SIZES: Config = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 2,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 49152,
}
HYBRID_SIZES: Config = {
    **DENSE_SIZES,
    "hidden_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 8,
    "linear_key_head_dim": 128,
    "linear_num_value_heads": 16,
    "linear_value_head_dim": 128,
    "layer_types": ["linear_attention", "full_attention"],
}
EXPERT_SIZES: Config = {
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 256,
    "shared_expert_intermediate_size": 256,
}
PER_LAYER = ("layer_types", "full_attention_interval")
"""Keys that say something of each layer, of which there are fewer then."""


def at_realistic_size(config: Config) -> Config:
    """The same features at the sizes of SmolLM2-135M, or of a hybrid of its kind, for times."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping):
        return {**config, "text_config": at_realistic_size(inner)}
    model_type = str(config["model_type"])
    sizes = HYBRID_SIZES if model_type.startswith("qwen3_5") else DENSE_SIZES
    if model_type.startswith("qwen3_5_moe"):
        sizes = {**sizes, **EXPERT_SIZES}
    kept = {key: value for key, value in config.items() if key not in PER_LAYER}
    return {**kept, **sizes}
