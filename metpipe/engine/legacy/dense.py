"""The hand-written forward of the dense family: Llama, Qwen2, Qwen3, Mistral.

It knows the family, not the circuit: dims come from config.json, weights by module name. One
kernel per op, each writing its own buffer, whose address stays: a step is bound once a row count.
Shapes: T rows, D hidden, I inter, V vocabulary, H query heads, G KV heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.config_keys import config_float, config_int
from metpipe.engine.legacy.forward import Kernels, LegacyStep, head_rows
from metpipe.engine.legacy.ops import Buffers, Ops, Rope
from metpipe.engine.rope_tables import RopeSpec, rope_spec
from metpipe.engine.weights import Weights

__all__ = ["DenseLegacy", "DenseShape"]

CLASS_DEFAULTS: Mapping[str, tuple[int | None, int | None]] = {
    "llama": (None, None),
    "mistral": (8, None),
    "qwen2": (32, None),
    "qwen3": (32, 128),
}
"""model_type -> KV heads and head dim of its Hugging Face class where the config has no such key;
None: as many KV heads as heads, hidden / heads."""


@dataclass(frozen=True, slots=True)
class DenseShape:
    """What the forward needs of config.json."""

    num_layers: int
    hidden: int
    inter: int
    vocab: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    qk_norm: bool
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> DenseShape:
        """Read a Hugging Face config; absent keys take that class's own defaults."""
        number = partial(config_int, config)
        kind = str(config["model_type"])
        heads = number("num_attention_heads")
        kv_heads, head_dim = CLASS_DEFAULTS[kind]
        bias = bool(config.get("attention_bias", False))
        return cls(
            num_layers=number("num_hidden_layers"),
            hidden=number("hidden_size"),
            inter=number("intermediate_size"),
            vocab=number("vocab_size"),
            num_heads=heads,
            num_kv_heads=_kv_heads(config, heads, kv_heads),
            head_dim=number("head_dim", head_dim or number("hidden_size") // heads),
            eps=config_float(config, "rms_norm_eps", 1e-6),
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2" or bias,
            out_bias=bias and kind != "qwen2",
            mlp_bias=bool(config.get("mlp_bias", False)),
            tied=bool(config.get("tie_word_embeddings", False)),
        )

    def rope(self, config: Mapping[str, object]) -> RopeSpec:
        """The rotary table that the config asks for, in its older or its newer spelling."""
        asked = config.get("rope_parameters") or config.get("rope_scaling") or {}
        assert isinstance(asked, Mapping)
        found = {key: value for key, value in asked.items() if value is not None}
        kind = found.get("rope_type", found.get("type", "default"))
        theta = found.get("rope_theta", config_float(config, "rope_theta", 10000.0))
        span = config.get("max_position_embeddings")
        if kind in ("llama3", "yarn") and span is not None:
            found.setdefault("original_max_position_embeddings", span)
        return rope_spec({**found, "rope_type": kind, "rope_theta": theta}, self.head_dim)


def _kv_heads(config: Mapping[str, object], heads: int, absent: int | None) -> int:
    """A null is as many KV heads as heads; an absent key is the class's own default."""
    value = config.get("num_key_value_heads", absent)
    return heads if value is None else int(str(value))


@dataclass(slots=True)
class DenseLegacy:
    """Bound launches of prefill and decode steps for one loaded model."""

    shape: DenseShape
    kernels: Kernels
    weights: Weights
    states: Mapping[str, torch.Tensor]
    step: Mapping[str, torch.Tensor | int]
    rope: Rope
    allocator: Allocator
    max_rows: int
    max_head_rows: int
    _buffers: Buffers = field(init=False)

    def __post_init__(self) -> None:
        self._buffers = Buffers(self.allocator)

    def bind(self, mode: str, rows: int) -> LegacyStep:
        """The launches of a step over `rows` rows; the mode says how many of them have logits."""
        ops = Ops(
            self.kernels,
            self.weights,
            self.step,
            self._buffers,
            self.shape.eps,
            "plain",
            rows,
            self.max_rows,
        )
        x_TD = ops.embed("model.embed_tokens", "x")
        for layer in range(self.shape.num_layers):
            x_TD = self._attention(ops, x_TD, layer)
            x_TD = self._feed_forward(ops, x_TD, f"model.layers.{layer}")
        head = ops.narrowed(head_rows(mode, rows), self.max_head_rows)
        module = "model.embed_tokens" if self.shape.tied else "lm_head"
        return head.head(x_TD, "model.norm", module, hidden=None)

    def _attention(self, ops: Ops, x_TD: torch.Tensor, layer: int) -> torch.Tensor:
        shape, base = self.shape, f"model.layers.{layer}"
        module = f"{base}.self_attn"
        xn_TD = ops.norm(x_TD, f"{base}.input_layernorm", "attn_in")
        q, k, v = (
            ops.linear(xn_TD, name, f"{module}.{name}_proj", has_bias=shape.qkv_bias)
            for name in ("q", "k", "v")
        )
        if shape.qk_norm:
            q = ops.head_norm(q, f"{module}.q_norm", "q_normed")
            k = ops.head_norm(k, f"{module}.k_norm", "k_normed")
        q, k = ops.rotate(q, k, self.rope, shape.head_dim)
        pools = self.states[f"l{layer}.attn.k"], self.states[f"l{layer}.attn.v"]
        a = ops.attend(q, k, v, pools, shape.head_dim)
        o = ops.linear(a, "o", f"{module}.o_proj", has_bias=shape.out_bias)
        return ops.add(x_TD, o, "after_attn")

    def _feed_forward(self, ops: Ops, x_TD: torch.Tensor, base: str) -> torch.Tensor:
        module, bias = f"{base}.mlp", self.shape.mlp_bias
        xn_TD = ops.norm(x_TD, f"{base}.post_attention_layernorm", "ffn_in")
        gate_up = (f"{module}.gate_proj", f"{module}.up_proj")
        act_TI = ops.silu_mul(ops.linear(xn_TD, "gate_up", *gate_up, has_bias=bias), "act")
        down = ops.linear(act_TI, "down", f"{module}.down_proj", has_bias=bias)
        return ops.add(x_TD, down, "after_ffn")

    def close(self) -> None:
        """Give every buffer back."""
        self._buffers.close()
