"""Configs of small hybrids: both families, nested and plain, of odd sizes."""

from __future__ import annotations

from typing import Any

__all__ = ["CONFIGS", "FULL"]

LINEAR, FULL = "linear_attention", "full_attention"


def _text(model_type: str, **sizes: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "vocab_size": 211,
        "hidden_size": 60,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 20,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 26,
        "linear_num_value_heads": 6,
        "linear_value_head_dim": 22,
        "linear_conv_kernel_dim": 4,
        "layer_types": [LINEAR, FULL, LINEAR, LINEAR, FULL],
        "num_hidden_layers": 5,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "mtp_num_hidden_layers": 1,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 2, 1],
            "mrope_interleaved": True,
        },
        **sizes,
    }


VISION = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "patch_size": 4,
    "spatial_merge_size": 2, "num_position_embeddings": 16,
}  # fmt: skip


def _nested(text: dict[str, Any]) -> dict[str, Any]:
    return {
        "model_type": text["model_type"].removesuffix("_text"),
        "text_config": text,
        "vision_config": {**VISION, "out_hidden_size": text["hidden_size"]},
        "tie_word_embeddings": text["tie_word_embeddings"],
    }


EXPERTS = {
    "num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 22,
    "shared_expert_intermediate_size": 30,
}  # fmt: skip
DENSE = _text("qwen3_5_text", intermediate_size=87)
NARROW = _text(
    "qwen3_5_text", intermediate_size=31, hidden_size=52, num_attention_heads=3,
    num_key_value_heads=1, head_dim=18, linear_num_key_heads=3, linear_key_head_dim=19,
    linear_num_value_heads=3, linear_value_head_dim=17, layer_types=[FULL, LINEAR, LINEAR, LINEAR],
    num_hidden_layers=4, tie_word_embeddings=True,
    rope_parameters={
        "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25
    },
)  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "dense, tied, rotary_dim 4 of 18": NARROW,
    "dense, nested": _nested(DENSE),
    "experts": _text("qwen3_5_moe_text", **EXPERTS),
    "experts, nested, tied": _nested(
        _text("qwen3_5_moe_text", **EXPERTS, hidden_size=44, tie_word_embeddings=True)
    ),
}
"""What is special of it -> config.json."""
