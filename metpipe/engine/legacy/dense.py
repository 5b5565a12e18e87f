"""The hand-written forward of the dense family: Llama, Qwen2, Qwen3, Mistral.

It knows the family, not the circuit: dims come from config.json, weights by module name. One
kernel per op, each writing its own buffer, whose address stays: a step is bound once a row count.
Shapes: T rows, D hidden, I inter, V vocabulary, H query heads, G KV heads, E head dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.forward import Kernels, LegacyStep, head_rows
from metpipe.engine.program import Launch
from metpipe.engine.rope_tables import RopeSpec, rope_spec
from metpipe.engine.weights import Weights

__all__ = ["DenseLegacy", "DenseShape"]

HEAD_BUFFERS = ("head_in", "logits", "tokens")
"""One row a sequence, not one a token: a prefill's logits are those of its last token."""


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
        number = _numbers(config)
        kind = str(config["model_type"])
        heads = number("num_attention_heads", None)
        kv_heads, head_dim = CLASS_DEFAULTS[kind]
        bias = bool(config.get("attention_bias", False))
        return cls(
            num_layers=number("num_hidden_layers", None),
            hidden=number("hidden_size", None),
            inter=number("intermediate_size", None),
            vocab=number("vocab_size", None),
            num_heads=heads,
            num_kv_heads=_kv_heads(config, heads, kv_heads),
            head_dim=number("head_dim", head_dim or number("hidden_size", None) // heads),
            eps=float(str(_given(config, "rms_norm_eps", 1e-6))),
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
        theta = found.get("rope_theta", _given(config, "rope_theta", 10000.0))
        span = config.get("max_position_embeddings")
        if kind in ("llama3", "yarn") and span is not None:
            found.setdefault("original_max_position_embeddings", span)
        return rope_spec({**found, "rope_type": kind, "rope_theta": theta}, self.head_dim)


def _given(config: Mapping[str, object], key: str, default: object) -> object:
    """The key's value; the default where it is absent or null."""
    value = config.get(key)
    return default if value is None else value


def _kv_heads(config: Mapping[str, object], heads: int, absent: int | None) -> int:
    """A null is as many KV heads as heads; an absent key is the class's own default."""
    value = config.get("num_key_value_heads", absent)
    return heads if value is None else int(str(value))


def _numbers(config: Mapping[str, object]) -> Callable[[str, int | None], int]:
    def number(key: str, default: int | None) -> int:
        value = config.get(key)
        if value is None:
            if default is None:
                raise KeyError(key)
            return default
        return int(str(value))

    return number


@dataclass(slots=True)
class DenseLegacy:
    """Bound launches of prefill and decode steps for one loaded model."""

    shape: DenseShape
    kernels: Kernels
    weights: Weights
    states: Mapping[str, torch.Tensor]
    step: Mapping[str, torch.Tensor | int]
    rope: tuple[torch.Tensor, torch.Tensor]
    allocator: Allocator
    max_rows: int
    max_head_rows: int
    _buffers: dict[str, torch.Tensor] = field(default_factory=dict)

    def bind(self, mode: str, rows: int) -> LegacyStep:
        """The launches of a step over `rows` rows; the mode says how many of them have logits."""
        x_TD, launches = self._embed(rows)
        for layer in range(self.shape.num_layers):
            x_TD = self._attention(launches, x_TD, layer, rows)
            x_TD = self._feed_forward(launches, x_TD, layer, rows)
        return self._head(launches, x_TD[rows - head_rows(mode, rows) :])

    def _embed(self, rows: int) -> tuple[torch.Tensor, list[Launch]]:
        x_TD = self._buffer("x", rows, self.shape.hidden)
        table_VD = self._weight("model.embed_tokens")
        return x_TD, [
            self.kernels["embed.embed"](
                token_ids=self._step_rows("token_ids", rows), table=table_VD, y=x_TD
            )
        ]

    def _attention(
        self, launches: list[Launch], x_TD: torch.Tensor, layer: int, rows: int
    ) -> torch.Tensor:
        shape, base = self.shape, f"model.layers.{layer}"
        xn_TD = self._norm(launches, x_TD, f"{base}.input_layernorm", "attn_in")
        q = self._linear(launches, xn_TD, f"{base}.self_attn.q_proj", "q", shape.qkv_bias)
        k = self._linear(launches, xn_TD, f"{base}.self_attn.k_proj", "k", shape.qkv_bias)
        v = self._linear(launches, xn_TD, f"{base}.self_attn.v_proj", "v", shape.qkv_bias)
        if shape.qk_norm:
            q = self._head_norm(launches, q, f"{base}.self_attn.q_norm", "q_normed")
            k = self._head_norm(launches, k, f"{base}.self_attn.k_norm", "k_normed")
        q, k = self._rotate(launches, q, k, rows)
        a = self._attend(launches, q, k, v, layer, rows)
        o = self._linear(launches, a, f"{base}.self_attn.o_proj", "o", shape.out_bias)
        return self._add(launches, x_TD, o, "after_attn")

    def _feed_forward(
        self, launches: list[Launch], x_TD: torch.Tensor, layer: int, rows: int
    ) -> torch.Tensor:
        base, bias = f"model.layers.{layer}", self.shape.mlp_bias
        xn_TD = self._norm(launches, x_TD, f"{base}.post_attention_layernorm", "ffn_in")
        gate_up = (f"{base}.mlp.gate_proj", f"{base}.mlp.up_proj")
        both = self._linear(launches, xn_TD, gate_up, "gate_up", bias)
        act_TI = self._buffer("act", rows, self.shape.inter)
        launches.append(self.kernels["activation.silu_mul"](gate_up=both, y=act_TI))
        down = self._linear(launches, act_TI, f"{base}.mlp.down_proj", "down", bias)
        return self._add(launches, x_TD, down, "after_ffn")

    def _head(self, launches: list[Launch], last_SD: torch.Tensor) -> LegacyStep:
        xn_SD = self._norm(launches, last_SD, "model.norm", "head_in")
        module = "model.embed_tokens" if self.shape.tied else "lm_head"
        logits_SV = self._linear(launches, xn_SD, module, "logits", has_bias=False)
        tokens_S1 = self._buffer("tokens", logits_SV.shape[0], 1, torch.int32)
        launches.append(self.kernels["head.argmax"](logits=logits_SV, tokens=tokens_S1))
        return LegacyStep(tuple(launches), logits_SV, tokens_S1, hidden_RD=None)

    def _rotate(
        self, launches: list[Launch], q: torch.Tensor, k: torch.Tensor, rows: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_out = self._buffer("q_rotated", rows, q.shape[1])
        k_out = self._buffer("k_rotated", rows, k.shape[1])
        cos, sin = self.rope
        launches.append(
            self.kernels["rope.rope"](
                q=q,
                k=k,
                cos=cos,
                sin=sin,
                positions=self._step_rows("positions", rows),
                q_out=q_out,
                k_out=k_out,
                head_dim=self.shape.head_dim,
            )
        )
        return q_out, k_out

    def _attend(
        self,
        launches: list[Launch],
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: int,
        rows: int,
    ) -> torch.Tensor:
        a = self._buffer("attended", rows, q.shape[1])
        where = {
            "positions": self._step_rows("positions", rows),
            "block_table": self._step_rows("block_table", rows),
            "block_size": self.step["block_size"],
            "k_pool": self.states[f"l{layer}.attn.k"],
            "v_pool": self.states[f"l{layer}.attn.v"],
        }
        launches.append(self.kernels["kv.kv_write"](k=k, v=v, **where))
        launches.append(
            self.kernels["attention.paged_attention"](
                q=q,
                y=a,
                scale=1.0 / math.sqrt(self.shape.head_dim),
                head_dim=self.shape.head_dim,
                **where,
            )
        )
        return a

    def _norm(
        self, launches: list[Launch], x_TD: torch.Tensor, module: str, name: str
    ) -> torch.Tensor:
        y_TD = self._buffer(name, x_TD.shape[0], x_TD.shape[1])
        launches.append(
            self.kernels["norm.rms_norm"](
                x=x_TD, weight=self._weight(module), y=y_TD, eps=self.shape.eps
            )
        )
        return y_TD

    def _head_norm(
        self, launches: list[Launch], x: torch.Tensor, module: str, name: str
    ) -> torch.Tensor:
        y = self._buffer(name, x.shape[0], x.shape[1])
        launches.append(
            self.kernels["norm.head_norm"](
                x=x, weight=self._weight(module), y=y, eps=self.shape.eps
            )
        )
        return y

    def _linear(
        self,
        launches: list[Launch],
        x: torch.Tensor,
        modules: str | tuple[str, ...],
        name: str,
        has_bias: bool,
    ) -> torch.Tensor:
        binding = (modules,) if isinstance(modules, str) else modules
        weight = self.weights.matrix(binding)
        y = self._buffer(name, x.shape[0], weight.shape[0])
        bias = self.weights.bias(binding) if has_bias else None
        launches.append(self.kernels["linear.linear"](x=x, weight=weight, bias=bias, y=y))
        return y

    def _add(
        self, launches: list[Launch], stream_TD: torch.Tensor, delta_TD: torch.Tensor, name: str
    ) -> torch.Tensor:
        y_TD = self._buffer(name, stream_TD.shape[0], stream_TD.shape[1])
        launches.append(
            self.kernels["residual.residual_add"](stream=stream_TD, delta=delta_TD, y=y_TD)
        )
        return y_TD

    def _weight(self, module: str) -> torch.Tensor:
        return self.weights.matrix((module,))

    def _step_rows(self, name: str, rows: int) -> torch.Tensor:
        buffer = self.step[name]
        assert isinstance(buffer, torch.Tensor), name
        return buffer[:rows]

    def _buffer(
        self, name: str, rows: int, dim: int, dtype: torch.dtype = torch.bfloat16
    ) -> torch.Tensor:
        """The first `rows` rows of this name's own buffer."""
        if name not in self._buffers:
            shape = (self.max_head_rows if name in HEAD_BUFFERS else self.max_rows, dim)
            self._buffers[name] = self.allocator.take("legacy", name, shape, dtype)
        return self._buffers[name][:rows]

    def close(self) -> None:
        """Give every buffer back."""
        for buffer in self._buffers.values():
            self.allocator.free(buffer)
        self._buffers.clear()
