"""The hand-written forward of the dense family: Llama, Qwen2, Qwen3, Mistral.

It knows the family, not the circuit: dims come from config.json, weights by module name. One
kernel per op, each writing its own buffer, whose address stays: a step is bound once a row count.
Shapes: T rows, D hidden, I inter, V vocabulary, H query heads, G KV heads, E head dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.class_defaults import DENSE, ROPE
from metpipe.engine.legacy.config_keys import ConfigKeys
from metpipe.engine.legacy.forward import Kernels, LegacyStep, head_rows
from metpipe.engine.legacy.ops import Buffers, Ops, Rope
from metpipe.engine.rope_tables import RopeSpec, rope_spec
from metpipe.engine.weights import Weights

__all__ = ["DenseLegacy", "DenseShape"]


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
        kind = str(config["model_type"])
        keys = ConfigKeys(config, DENSE[kind])
        heads, bias = keys.integer("num_attention_heads"), keys.is_true("attention_bias")
        return cls(
            num_layers=keys.integer("num_hidden_layers"),
            hidden=keys.integer("hidden_size"),
            inter=keys.integer("intermediate_size"),
            vocab=keys.integer("vocab_size"),
            num_heads=heads,
            num_kv_heads=_kv_heads(keys, heads),
            head_dim=_head_dim(keys, heads),
            eps=keys.number("rms_norm_eps"),
            qk_norm=kind == "qwen3",
            qkv_bias=kind == "qwen2" or bias,
            out_bias=bias and kind != "qwen2",
            mlp_bias=keys.is_true("mlp_bias"),
            tied=keys.is_true("tie_word_embeddings"),
        )

    def rope(self, config: Mapping[str, object]) -> RopeSpec:
        """The rotary table that the config asks for, in its older or its newer spelling."""
        asked = config.get("rope_parameters") or config.get("rope_scaling") or {}
        assert isinstance(asked, Mapping)
        found = {key: value for key, value in asked.items() if value is not None}
        kind = found.get("rope_type", found.get("type", "default"))
        theta = found.get("rope_theta", ConfigKeys(config, ROPE).number("rope_theta"))
        span = config.get("max_position_embeddings")
        if kind in ("llama3", "yarn") and span is not None:
            found.setdefault("original_max_position_embeddings", span)
        return rope_spec({**found, "rope_type": kind, "rope_theta": theta}, self.head_dim)


def _kv_heads(keys: ConfigKeys, heads: int) -> int:
    """A null is as many KV heads as heads, as is an absent key where the class has no default."""
    key = "num_key_value_heads"
    value = keys.config.get(key, keys.defaults.get(key))
    return heads if value is None else int(str(value))


def _head_dim(keys: ConfigKeys, heads: int) -> int:
    """Stated or the class's own; else the heads share the hidden size."""
    key = "head_dim"
    if keys.config.get(key) is None and key not in keys.defaults:
        return keys.integer("hidden_size") // heads
    return keys.integer(key)


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
