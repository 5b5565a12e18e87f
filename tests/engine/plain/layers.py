"""The layers of the hybrid families in plain torch, row by row, written from their descriptions.

Shapes: N rows of one sequence, D hidden, H query heads, G key-value heads, d head dim, E experts.

Every value is held as f32. `Store` rounds where the circuit has a bf16 edge, or never: so one text
is both the fp32 and the bf16 reference. Sums are torch's own, so their order is not the kernels'.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import silu, softplus

__all__ = ["BF16", "FP32", "Attention", "DeltaNet", "Experts", "FeedForward", "Part", "norm"]

Store = Callable[[torch.Tensor], torch.Tensor]
Read = Callable[[str], torch.Tensor]


def FP32(x: torch.Tensor) -> torch.Tensor:
    """Keeps every bit."""
    return x


def BF16(x: torch.Tensor) -> torch.Tensor:
    """Rounds to the nearest bf16, ties to even."""
    return x.bfloat16().float()


@dataclass(slots=True)
class Part:
    """Weights below one module, and how values are stored."""

    config: Mapping[str, Any]
    read: Read
    module: str
    store: Store

    def weight(self, name: str) -> torch.Tensor:
        """A tensor below the module, as f32."""
        return self.read(f"{self.module}.{name}").float()

    def linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """The product with a matrix, stored."""
        return self.store(x @ self.weight(f"{name}.weight").T)

    def norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Over the last axis, by 1 + weight, stored."""
        return self.store(norm(x, 1 + self.weight(f"{name}.weight"), self.config["rms_norm_eps"]))


def norm(x: torch.Tensor, scale: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last axis: x / rms(x) * scale."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * scale


@dataclass(slots=True)
class Attention:
    """Gated grouped-query attention with partial rotary positions; keeps its keys and values."""

    part: Part
    keys: list[torch.Tensor] = field(default_factory=list)
    """of a position: [G, d]"""
    values: list[torch.Tensor] = field(default_factory=list)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, D] -> the stream behind the layer's residual add; rows follow what is kept."""
        part, d = self.part, self.part.config["head_dim"]
        xn = part.norm(x, "input_layernorm")
        q, gate = part.linear(xn, "self_attn.q_proj").unflatten(-1, (-1, 2, d)).unbind(-2)
        k, v = (part.linear(xn, f"self_attn.{one}_proj").unflatten(-1, (-1, d)) for one in "kv")
        q, k = part.norm(q, "self_attn.q_norm"), part.norm(k, "self_attn.k_norm")
        rows = []
        for q_Hd, k_Gd, v_Gd in zip(q, k, v, strict=True):
            position = len(self.keys)
            self.keys.append(self._rotated(k_Gd, position))
            self.values.append(v_Gd)
            rows.append(self._attend(self._rotated(q_Hd, position)).flatten())
        attended = part.store(torch.stack(rows) * torch.sigmoid(gate.flatten(-2)))
        return part.store(x + part.linear(attended, "self_attn.o_proj"))

    def trim(self, length: int) -> None:
        """Forget the positions behind the first `length`."""
        del self.keys[length:], self.values[length:]

    def _attend(self, q_Hd: torch.Tensor) -> torch.Tensor:
        heads, d = q_Hd.shape
        k, v = (torch.stack(kept, 1) for kept in (self.keys, self.values))
        k, v = (kept.repeat_interleave(heads // len(kept), 0) for kept in (k, v))
        scores = (k @ q_Hd[:, :, None]).squeeze(-1) * d**-0.5
        return self.part.store((scores.softmax(-1)[:, None] @ v).squeeze(1))

    def _rotated(self, x: torch.Tensor, position: int) -> torch.Tensor:
        """The first channels of each head turn, paired by halves."""
        rope = self.part.config["rope_parameters"]
        turning = int(x.shape[-1] * rope["partial_rotary_factor"])
        angles = position * rope["rope_theta"] ** -(
            torch.arange(0, turning, 2, dtype=torch.float64) / turning
        )
        cos, sin = angles.cos().float(), angles.sin().float()
        a, b, rest = x.split((turning // 2, turning // 2, x.shape[-1] - turning), -1)
        return self.part.store(torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1))


@dataclass(slots=True)
class DeltaNet:
    """Gated delta net; keeps the window of its convolution and a matrix per value head."""

    part: Part
    window: torch.Tensor | None = None
    """[channels, 4]: the last inputs, newest last"""
    state: torch.Tensor | None = None
    """[value heads, dk, dv]"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, D] -> the stream behind the layer's residual add."""
        part, config = self.part, self.part.config
        xn = part.norm(x, "input_layernorm")
        qkv, z, b, a = (
            part.linear(xn, f"linear_attn.in_proj_{one}") for one in ("qkv", "z", "b", "a")
        )
        decay = -self.part.weight("linear_attn.A_log").exp() * softplus(
            a + part.weight("linear_attn.dt_bias")
        )
        rows = [self._step(*row) for row in zip(qkv, decay.exp(), torch.sigmoid(b), strict=True)]
        core = torch.stack(rows)
        gated = norm(core, part.weight("linear_attn.norm.weight"), config["rms_norm_eps"])
        gated = part.store(gated * silu(z.view_as(core))).flatten(-2)
        return part.store(x + part.linear(gated, "linear_attn.out_proj"))

    def _step(self, qkv: torch.Tensor, kept: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
        """One row: [channels], [value heads] twice -> [value heads, dv]."""
        config = self.part.config
        heads, dk = config["linear_num_key_heads"], config["linear_key_head_dim"]
        many, dv = config["linear_num_value_heads"], config["linear_value_head_dim"]
        q, k, v = self._convolved(qkv).split((heads * dk, heads * dk, many * dv))
        q, k = (_unit(one.view(heads, dk)).repeat_interleave(many // heads, 0) for one in (q, k))
        state = torch.zeros(many, dk, dv) if self.state is None else self.state
        state = state * kept[:, None, None]
        wrong = v.view(many, dv) - (k[:, None] @ state).squeeze(1)
        self.state = state + k[:, :, None] * (beta[:, None] * wrong)[:, None]
        return ((q * dk**-0.5)[:, None] @ self.state).squeeze(1)

    def _convolved(self, qkv: torch.Tensor) -> torch.Tensor:
        taps = self.part.weight("linear_attn.conv1d.weight").squeeze(1)
        window = torch.zeros_like(taps) if self.window is None else self.window
        self.window = torch.cat((window[:, 1:], qkv[:, None]), 1)
        return silu((self.window * taps).sum(-1))


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


@dataclass(slots=True)
class FeedForward:
    """SwiGLU behind a norm, on the residual stream."""

    part: Part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, D] -> [N, D]."""
        xn = self.part.norm(x, "post_attention_layernorm")
        return self.part.store(x + _swiglu(self.part, xn, "mlp"))


def _swiglu(part: Part, xn: torch.Tensor, name: str) -> torch.Tensor:
    gate, up = part.linear(xn, f"{name}.gate_proj"), part.linear(xn, f"{name}.up_proj")
    return part.linear(part.store(silu(gate) * up), f"{name}.down_proj")


@dataclass(slots=True)
class Experts:
    """The chosen experts, weighted, and a gated shared one; counts whom it chose."""

    part: Part
    chosen: dict[int, int] = field(default_factory=dict)
    """expert -> how often"""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, D] -> [N, D]."""
        part, top = self.part, self.part.config["num_experts_per_tok"]
        xn = part.norm(x, "post_attention_layernorm")
        weights, ids = part.linear(xn, "mlp.gate").softmax(-1).topk(top)
        weights = weights / weights.sum(-1, keepdim=True)
        routed = torch.stack(
            [self._routed(row, *choice) for row, *choice in zip(xn, weights, ids, strict=True)]
        )
        share = torch.sigmoid(part.linear(xn, "mlp.shared_expert_gate"))
        blended = part.store(routed + share * _swiglu(part, xn, "mlp.shared_expert"))
        return part.store(x + blended)

    def _routed(self, xn: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(xn)
        for weight, number in zip(weights, ids.tolist(), strict=True):
            self.chosen[number] = self.chosen.get(number, 0) + 1
            total += weight * _swiglu(self.part, xn, f"mlp.experts.{number}")
        return total
