"""The legacy arena: the buffers that met's default forward allocates once (section 15).

Symbols, as the formulas have them: M tokens of a step, P = M rounded up to 16, D = max(32, slots),
Z = a delta net's query, key, value and z channels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from metpipe.memory.met.arena_scratch import ceil_div, rounded, scratch_bytes
from metpipe.memory.met.shape import ModelShape

__all__ = ["ArenaSizes", "SplitK", "arena_buffers", "arena_bytes", "two_phase_bytes"]

SplitK = Literal["legacy", "auto"]
"""How a class splits the keys of a decode: one part an SM, or parts a head by what is idle."""

PLACEHOLDER = 256
"""A buffer that is not used."""


@dataclass(frozen=True, slots=True)
class ArenaSizes:
    """What the serve and the device give: tokens of a step, slots, lengths, SMs."""

    tokens: int
    slots: int
    max_seq_len: int
    block_size: int
    sm_count: int
    split_k: SplitK
    expert_element_bytes: int

    @property
    def padded(self) -> int:
        """P: tokens rounded up to 16."""
        return rounded(self.tokens, 16)

    @property
    def decode_rows(self) -> int:
        """D: rows that decode metadata has room for."""
        return max(32, self.slots)


@lru_cache(maxsize=4096)
def arena_bytes(shape: ModelShape, sizes: ArenaSizes) -> int:
    """The sum of the buffers."""
    return sum(arena_buffers(shape, sizes).values())


@lru_cache(maxsize=4096)
def two_phase_bytes(shape: ModelShape, tokens: int, max_seq_len: int) -> int:
    """Buffers of the delta nets' prefill in two phases; 0 without such layers (section 15.3)."""
    if not shape.lin_v_heads:
        return 0
    rows = min(tokens, max_seq_len)
    return rows * (2 * shape.conv + 8 * shape.lin_v_heads + 4 * shape.lin_values)


def arena_buffers(shape: ModelShape, sizes: ArenaSizes) -> Mapping[str, int]:
    """Each buffer's bytes, by name."""
    return {
        **_stream(shape, sizes),
        **_attention(shape, sizes),
        **_recurrent(shape, sizes),
        **_experts(shape, sizes),
        **_fp8(shape, sizes),
        **({} if shape.experts else _dense(shape, sizes)),
        "hyper_connections": 3 * PLACEHOLDER,
        "low_rank": PLACEHOLDER,
        "sparse_attention": PLACEHOLDER,
    }


def _stream(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    tokens, hidden = sizes.tokens, shape.hidden
    logits_rows = min(tokens, max(256, sizes.decode_rows + 1))
    scratch = scratch_bytes(shape, tokens, sizes.decode_rows, sizes.max_seq_len, sizes.block_size)
    return {
        "hidden": 2 * tokens * hidden,
        "residual": 2 * tokens * hidden,
        "norm": 2 * tokens * max(hidden, shape.mamba_inner),
        "logits": 2 * shape.vocab * logits_rows,
        "token_ids": max(256, 4 * tokens),
        "scratch": scratch,
    }


def _attention(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    queries = shape.q_heads * (2 if shape.gated_queries else 1)
    width = max(shape.q_heads * shape.head_dim, shape.mamba_inner)
    return {
        "qkv": 2 * sizes.padded * (queries + 2 * shape.kv_heads) * shape.head_dim,
        "attention": 2 * sizes.tokens * width,
        "split_k": 4 * (shape.head_dim + 2) * _split_k_slots(shape, sizes),
    }


def _split_k_slots(shape: ModelShape, sizes: ArenaSizes) -> int:
    if sizes.split_k == "legacy":
        return sizes.sm_count
    parts = min(max(ceil_div(2 * sizes.sm_count, shape.q_heads), 1), 16)
    return sizes.decode_rows * shape.q_heads * parts


def _recurrent(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    """Buffers that other layers borrow too, so that each is the largest of their uses."""
    tokens, padded, hidden = sizes.tokens, sizes.padded, shape.hidden
    few = min(tokens, 128)
    keys = (tokens + padded) * shape.kv_heads * shape.head_dim
    return {
        "ssm_qkvz": max(
            2 * padded * shape.qkvz,
            2 * tokens * shape.mamba_in,
            2 * keys,
            2 * tokens * shape.shared_inter,
            256,
        ),
        "ssm_ba": max(
            2 * tokens * 2 * shape.lin_v_heads,
            2 * tokens * shape.moe_latent,
            4 * hidden * few,
            256,
        ),
        "ssm_deinterleaved": max(
            2 * padded * shape.qkvz,
            2 * tokens * shape.mamba_xbc,
            2 * tokens * shape.q_heads * shape.head_dim,
            256,
        ),
        "ssm_gates": max(8 * tokens * shape.lin_v_heads, 2 * hidden * few, 256),
        "ssm_conv_f32": max(4 * tokens * shape.qkvz, 256),
        "gdn_chunks": _gdn_chunks(shape, tokens),
        "ssd": _ssd(shape, tokens),
    }


def _gdn_chunks(shape: ModelShape, tokens: int) -> int:
    """Chunks of 64 tokens, with a tail for each of 16 sequences; per head two tiles and a state."""
    if not shape.is_square:
        return 0
    chunks, k, v = ceil_div(tokens, 64) + 16, shape.lin_k_dim, shape.lin_v_dim
    return chunks * shape.lin_v_heads * (64 * k * 2 + 64 * v * 2 + k * v * 2 + 64 * v * 2 + 256)


def _ssd(shape: ModelShape, tokens: int) -> int:
    if not shape.mamba_heads:
        return 0
    chunks = ceil_div(tokens, 64) + 1
    return 2 * shape.mamba_heads * chunks * 256 + chunks * shape.ssm_groups * 16384


def _experts(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    """The feed-forward's buffers; a dense one uses the same, at its own widths."""
    tokens, experts = sizes.tokens, shape.experts
    rows = rounded(max(tokens, 3), 16)
    width = max(shape.top_k * shape.moe_inter, shape.inter) if experts else shape.inter
    element = sizes.expert_element_bytes if experts else 2
    return {
        "gate_logits": 2 * tokens * experts if experts else PLACEHOLDER,
        "gate_logits_f32": 4 * tokens * experts if experts else PLACEHOLDER,
        "router_input_f32": 4 * tokens * shape.hidden if experts else PLACEHOLDER,
        "moe_output": 2 * sizes.padded * shape.hidden,
        "expert_gate": element * rows * width,
        "expert_up": element * rows * width,
        "expert_down": 2 * rows * (shape.top_k * shape.moe_io if experts else shape.hidden),
        "moe_fp8": _moe_fp8(shape, tokens) if experts else 0,
    }


def _moe_fp8(shape: ModelShape, tokens: int) -> int:
    """Deduced from the arenas of three boots, which it meets to 0.01 % (section 15.4)."""
    inter = shape.moe_inter
    return tokens * shape.top_k * (inter + 4 * ceil_div(inter, 128) + 4)


def _dense(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    """Quantised activations of a dense feed-forward, for its integer kernels."""
    width = max(shape.hidden, shape.inter)
    return {
        "q8": sizes.tokens * rounded(width, 256) * 4 + (1 << 20),
        "int8": sizes.padded * width,
        "int8_scales": 4 * sizes.padded * (width // 32),
        "int8_scales_k_major": 4 * sizes.padded * (width // 128),
        "fused_gate_up": 64 * shape.inter,
    }


def _fp8(shape: ModelShape, sizes: ArenaSizes) -> dict[str, int]:
    """FP8 activations of the widest projection, their scales, and those again K-major."""
    attention = shape.q_heads * shape.head_dim
    width = max(shape.hidden, attention, shape.mamba_inner, shape.lin_values)
    scales = 4 * sizes.padded * ceil_div(width, 128)
    return {"fp8": sizes.padded * width, "fp8_scales": scales, "fp8_scales_k_major": scales}
