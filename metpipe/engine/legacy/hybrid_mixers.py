"""The mixers of the hybrids: a gated delta net, and grouped attention whose output is gated.

Shapes: R rows, D hidden, G KV heads, E head dim; of a delta net V value heads of Dv, which share
key heads in groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from metpipe.engine.legacy.hybrid_shape import HybridShape
from metpipe.engine.legacy.ops import Ops, Rope

__all__ = ["Mixers"]

L2_EPS = 1e-6
"""Of the query and key norms of a delta net; no config key changes it."""


@dataclass(frozen=True, slots=True)
class Mixers:
    """Both mixers, over one model's states."""

    shape: HybridShape
    states: Mapping[str, torch.Tensor]
    """KV pools bf16 [tokens, G * E]; recurrent pools f32 [slots + 1, elements]"""
    snapshots: Mapping[str, torch.Tensor]
    """recurrent state -> f32 [snapshot rows, elements]: where verify rows leave copies of it"""
    rope: Rope

    def delta_net(self, ops: Ops, x_RD: torch.Tensor, layer: int) -> torch.Tensor:
        """The stream behind a gated delta net: rows pass through their slots' states in order."""
        base = f"{self.shape.root}.layers.{layer}"
        net = f"{base}.linear_attn"
        xn_RD = ops.norm(x_RD, f"{base}.input_layernorm", "mixer_in")
        qkvz = ops.linear(xn_RD, "qkvz", f"{net}.in_proj_qkv", f"{net}.in_proj_z")
        ba = ops.linear(xn_RD, "ba", f"{net}.in_proj_b", f"{net}.in_proj_a")
        decay_RV, beta_RV = self._gates(ops, ba, net)
        qkv = self._convolved(ops, qkvz, net, f"l{layer}.gdn.conv")
        core = self._recurrence(ops, qkv, decay_RV, beta_RV, f"l{layer}.gdn.h")
        gated = self._gated_norm(ops, core, qkvz, net)
        return ops.add(x_RD, ops.linear(gated, "delta_out", f"{net}.out_proj"), "after_mixer")

    def attention(self, ops: Ops, x_RD: torch.Tensor, base: str, prefix: str) -> torch.Tensor:
        """The stream behind gated attention; `prefix`: of its KV states, `l3` or `draft`."""
        shape, module = self.shape, f"{base}.self_attn"
        xn_RD = ops.norm(x_RD, f"{base}.input_layernorm", "mixer_in")
        both = ops.linear(xn_RD, "q_gate", f"{module}.q_proj")
        q, gate = (ops.out(name, shape.q_heads * shape.head_dim) for name in ("q", "gate"))
        ops.run("split.split_heads", both=both, first=q, second=gate, head_dim=shape.head_dim)
        k = ops.linear(xn_RD, "k", f"{module}.k_proj")
        v = ops.linear(xn_RD, "v", f"{module}.v_proj")
        q = ops.head_norm(q, f"{module}.q_norm", "q_normed")
        k = ops.head_norm(k, f"{module}.k_norm", "k_normed")
        q, k = ops.rotate(q, k, self.rope, shape.head_dim)
        pools = self.states[f"{prefix}.attn.k"], self.states[f"{prefix}.attn.v"]
        a = ops.attend(q, k, v, pools, shape.head_dim)
        open_a = ops.out("attended_gated", a.shape[1])
        ops.run("gates.sigmoid_gate_mul", x=a, gate=gate, y=open_a)
        return ops.add(x_RD, ops.linear(open_a, "o", f"{module}.o_proj"), "after_mixer")

    def _gates(self, ops: Ops, ba: torch.Tensor, net: str) -> tuple[torch.Tensor, torch.Tensor]:
        """The decay's logarithm and the step size of each value head: f32 [R, V]."""
        decay_RV, beta_RV = (
            ops.out(name, self.shape.v_heads, torch.float32) for name in ("decay", "beta")
        )
        ops.run(
            "gates.gdn_gates",
            ba=ba,
            a_log=ops.weights.tensor(f"{net}.A_log"),
            dt_bias=ops.weights.tensor(f"{net}.dt_bias"),
            decay=decay_RV,
            beta=beta_RV,
        )
        return decay_RV, beta_RV

    def _convolved(self, ops: Ops, qkvz: torch.Tensor, net: str, state: str) -> torch.Tensor:
        """Query, key and value channels behind the convolution, q and k heads of length 1: f32."""
        shape = self.shape
        conv, qkv = (ops.out(name, shape.conv_dim, torch.float32) for name in ("conv", "qkv"))
        ops.run(
            "conv.conv1d_update",
            x=qkvz,
            taps=ops.weights.tensor(f"{net}.conv1d.weight"),
            conv=self.states[state],
            slots=ops.of_step("slots"),
            steps=self.snapshots[state],
            step_rows=ops.of_step("snapshots"),
            y=conv,
        )
        ops.run("conv.l2_norm", x=conv, y=qkv, k_heads=shape.k_heads, k_dim=shape.k_dim, eps=L2_EPS)
        return qkv

    def _recurrence(
        self, ops: Ops, qkv: torch.Tensor, decay_RV: torch.Tensor, beta_RV: torch.Tensor, state: str
    ) -> torch.Tensor:
        """What the rows read of their slots' matrix states: f32 [R, V * Dv]."""
        shape = self.shape
        core = ops.out("core", shape.v_heads * shape.v_dim, torch.float32)
        ops.run(
            "delta.gdn_recurrence",
            qkv=qkv,
            decay=decay_RV,
            beta=beta_RV,
            h=self.states[state],
            slots=ops.of_step("slots"),
            steps=self.snapshots[state],
            step_rows=ops.of_step("snapshots"),
            y=core,
            k_heads=shape.k_heads,
            k_dim=shape.k_dim,
            scale=1.0 / math.sqrt(shape.k_dim),
        )
        return core

    def _gated_norm(
        self, ops: Ops, core: torch.Tensor, qkvz: torch.Tensor, net: str
    ) -> torch.Tensor:
        """Head by head the norm, times the weight as stored, times silu(z): bf16 [R, V * Dv]."""
        gated = ops.out("gated", core.shape[1])
        ops.run(
            "gated_norm.gated_rms_norm",
            x=core,
            weight=ops.weights.matrix((f"{net}.norm",)),
            gate=qkvz,
            gate_offset=self.shape.conv_dim,
            y=gated,
            eps=ops.eps,
        )
        return gated
