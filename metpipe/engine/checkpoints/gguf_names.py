"""Hugging Face names of a dense model's gguf tensors, and the row order that llama files carry."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

__all__ = ["ROPE_FREQS", "hf_name", "hf_row_order"]

ROPE_FREQS = "rope_freqs.weight"

ROOT = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PATTERN = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<module>\w+)\.(?P<kind>weight|bias)")


def hf_name(name: str) -> str | None:
    """The Hugging Face tensor name; None when no dense model has such a tensor."""
    match = PATTERN.fullmatch(name)
    if match is None:
        return None
    layer, module, kind = match.group("layer", "module", "kind")
    if layer is None:
        return f"{ROOT[module]}.{kind}" if module in ROOT else None
    return f"model.layers.{layer}.{LAYER[module]}.{kind}" if module in LAYER else None


def hf_row_order(num_heads: int, num_rows: int) -> npt.NDArray[np.int64]:
    """For each row of a Hugging Face q or k projection, the row of the llama gguf that holds it.

    Within a head, Hugging Face pairs row j with row j + d/2 for the rotation; ggml's llama rotates
    neighbours, so that the converter wrote the pairs next to one another
    (`permute` in llama.cpp's convert_hf_to_gguf.py).
    """
    pairs = np.arange(num_rows, dtype=np.int64).reshape(num_heads, -1, 2)
    return pairs.swapaxes(1, 2).reshape(-1)
