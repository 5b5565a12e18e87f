"""What a config class takes where config.json has no such key, or a null.

Source: the classes of transformers 5.24 (configuration_llama.py and its kin), to which the tests of
the hand-written forwards hold every number. A key that stands in no table has no default here,
whatever its class says: without it another model than the checkpoint's would run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeAlias

__all__ = ["DENSE", "EXPERTS", "HYBRID", "OUTER", "ROPE", "Defaults"]

Defaults: TypeAlias = Mapping[str, int | float | bool]

_EVERY_DENSE: Defaults = {
    "rms_norm_eps": 1e-6,
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
DENSE: Mapping[str, Defaults] = MappingProxyType(
    {
        "llama": _EVERY_DENSE,
        "mistral": {**_EVERY_DENSE, "num_key_value_heads": 8},
        "qwen2": {**_EVERY_DENSE, "num_key_value_heads": 32},
        "qwen3": {**_EVERY_DENSE, "num_key_value_heads": 32, "head_dim": 128},
    }
)
"""model_type -> LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config. Where a class gives no KV
heads, they are as many as heads; no head dim: hidden / heads."""

HYBRID: Defaults = MappingProxyType(
    {
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "full_attention_interval": 4,
        "rms_norm_eps": 1e-6,
        "mtp_num_hidden_layers": 0,
    }
)
"""Qwen3_5TextConfig and Qwen3_5MoeTextConfig, which agree. The last key is none of theirs: a
checkpoint that does not mention a draft head has none."""

OUTER: Defaults = MappingProxyType({"tie_word_embeddings": False})
"""Qwen3_5Config and Qwen3_5MoeConfig, beside their text model's keys."""

EXPERTS: Defaults = MappingProxyType(
    {
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    }
)
"""Qwen3_5MoeTextConfig. How many experts there are is not guessed: the key must be there."""

ROPE: Defaults = MappingProxyType({"rope_theta": 10000.0, "partial_rotary_factor": 0.25})
"""rope_parameters of all these classes; the share that is turned is of the hybrids alone."""
