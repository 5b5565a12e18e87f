"""Small hybrids with a draft head that is often right: with a dense feed-forward, and experts."""

from __future__ import annotations

from typing import Any

__all__ = ["EXPERTS", "HYBRID"]

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 300,
    "hidden_size": 60,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
    "head_dim": 20,
    "linear_num_key_heads": 1,
    "linear_key_head_dim": 18,
    "linear_num_value_heads": 2,
    "linear_value_head_dim": 22,
    "linear_conv_kernel_dim": 4,
    "mtp_num_hidden_layers": 1,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1000.0,
        "partial_rotary_factor": 0.5,
    },
}
WITH_EXPERTS: dict[str, Any] = {
    **{key: value for key, value in CONFIG.items() if key != "intermediate_size"},
    "model_type": "qwen3_5_moe_text",
    "num_experts": 7,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 30,
}

HYBRID = {"name": "hybrid", "config": CONFIG, "weights": "successor"}
EXPERTS = {"name": "experts", "config": WITH_EXPERTS, "weights": "successor"}
