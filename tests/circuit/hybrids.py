"""Configs of the hybrid families: tiny ones as transformers 5.24 saves them, and published ones."""

from __future__ import annotations

from metpipe.circuit import Circuit, Resolved, resolve_checkpoint

from .families import frozen, library

TINY = frozen("hybrid_configs.json")
"""Of random models: the text model alone (`_text`, flat), and inside a model that sees."""
TENSORS = frozen("hybrid_tensors.json")
"""tensor name -> shape of those models' checkpoints"""

TEXT = {
    "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True,
    "dtype": "bfloat16", "eos_token_id": 248044, "full_attention_interval": 4, "head_dim": 256,
    "hidden_act": "silu", "initializer_range": 0.02, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "max_position_embeddings": 262144, "mlp_only_layers": [],
    "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
    "output_gate_type": "swish", "partial_rotary_factor": 0.25, "rms_norm_eps": 1e-06,
    "rope_parameters": {
        "mrope_interleaved": True, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
        "rope_theta": 10000000, "rope_type": "default",
    },
    "tie_word_embeddings": False, "use_cache": True, "vocab_size": 248320,
}  # fmt: skip
SIZES = {
    "27B": ("qwen3_5", {
        "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 24,
        "num_key_value_heads": 4, "intermediate_size": 17408, "linear_num_value_heads": 48,
    }),
    "35B-A3B": ("qwen3_5_moe", {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16,
        "num_key_value_heads": 2, "linear_num_value_heads": 32, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }),
    "122B-A10B": ("qwen3_5_moe", {
        "hidden_size": 3072, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 2, "linear_num_value_heads": 64, "num_experts": 256,
        "num_experts_per_tok": 8, "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    }),
}  # fmt: skip


def published(name: str) -> dict[str, object]:
    """A published shape, with the keys that its checkpoints have."""
    model_type, sizes = SIZES[name]
    count = int(str(sizes["num_hidden_layers"]))
    kinds = ["full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(count)]
    return {
        "architectures": ["ForConditionalGeneration"],
        "model_type": model_type,
        "text_config": {
            "model_type": f"{model_type}_text", **TEXT, **sizes, "layer_types": kinds
        },
        "vision_config": {"depth": 27},
        "image_token_id": 248056,
        "video_token_id": 248057,
        "vision_start_token_id": 248053,
        "vision_end_token_id": 248054,
        "tie_word_embeddings": False,
    }  # fmt: skip


def changed(name: str, **keys: object) -> dict[str, object]:
    """A tiny flat config with other keys; `...` leaves one out."""
    made = {**TINY[name], **keys}
    return {key: value for key, value in made.items() if value is not ...}


def understood(config: dict[str, object]) -> Resolved:
    return resolve_checkpoint(config, library=library(), source="some/config.json")


def circuit_of(config: dict[str, object]) -> Circuit:
    return understood(config).circuit
