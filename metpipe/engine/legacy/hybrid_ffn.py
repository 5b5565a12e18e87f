"""The feed-forwards of the hybrids: a SwiGLU, or routed experts beside a gated shared one.

Shapes: R rows, D hidden, I inter, N experts, T of them chosen for each row.
"""

from __future__ import annotations

import torch

from metpipe.engine.legacy.hybrid_shape import ExpertShape
from metpipe.engine.legacy.ops import Ops

__all__ = ["feed_forward"]


def feed_forward(
    ops: Ops, x_RD: torch.Tensor, base: str, experts: ExpertShape | None
) -> torch.Tensor:
    """The stream behind a layer's feed-forward; `base`: the layer's module."""
    xn_RD = ops.norm(x_RD, f"{base}.post_attention_layernorm", "ffn_in")
    if experts is None:
        delta_RD = _swiglu(ops, xn_RD, f"{base}.mlp", "")
    else:
        delta_RD = _experts(ops, xn_RD, f"{base}.mlp", experts)
    return ops.add(x_RD, delta_RD, "after_ffn")


def _swiglu(ops: Ops, xn_RD: torch.Tensor, module: str, name: str) -> torch.Tensor:
    """down(silu(gate) * up): [R, D]; `name` precedes its buffers' names."""
    gate_up = ops.linear(xn_RD, f"{name}gate_up", f"{module}.gate_proj", f"{module}.up_proj")
    act = ops.silu_mul(gate_up, f"{name}act")
    return ops.linear(act, f"{name}down", f"{module}.down_proj")


def _experts(ops: Ops, xn_RD: torch.Tensor, module: str, shape: ExpertShape) -> torch.Tensor:
    """The chosen experts' rows by weight, in the router's order, then the gated shared expert."""
    weights_RT, ids_RT = _choices(ops, xn_RD, module, shape)
    rows = _routed(ops, xn_RD, ids_RT, f"{module}.experts.*", shape)
    shared_RD = _swiglu(ops, xn_RD, f"{module}.shared_expert", "shared_")
    gate_R1 = ops.linear(xn_RD, "shared_gate", f"{module}.shared_expert_gate")
    y_RD = ops.out("blended", xn_RD.shape[1])
    ops.run(
        "blend.blend",
        rows=rows,
        weights=weights_RT,
        shared=shared_RD,
        shared_gate=gate_R1,
        y=y_RD,
    )
    return y_RD


def _choices(
    ops: Ops, xn_RD: torch.Tensor, module: str, shape: ExpertShape
) -> tuple[torch.Tensor, torch.Tensor]:
    """f32 weights that sum to one, and i32 numbers of the experts, the greatest first: [R, T]."""
    logits_RN = ops.linear(xn_RD, "router", f"{module}.gate")
    weights_RT = ops.out("expert_weights", shape.top_k, torch.float32)
    ids_RT = ops.out("expert_ids", shape.top_k, torch.int32)
    ops.run("router.top_k", logits=logits_RN, weights=weights_RT, ids=ids_RT, count=shape.top_k)
    return weights_RT, ids_RT


def _routed(
    ops: Ops, xn_RD: torch.Tensor, ids_RT: torch.Tensor, experts: str, shape: ExpertShape
) -> torch.Tensor:
    """Each row through each of its experts: [R * T, D], row r being choice r mod T of r / T."""
    weight = ops.weights.matrix((f"{experts}.gate_proj", f"{experts}.up_proj"))
    gate_up = ops.out("expert_gate_up", 2 * shape.inter, per_row=shape.top_k)
    ops.run("experts.expert_gate_up", x=xn_RD, ids=ids_RT, weight=weight, y=gate_up)
    act = ops.silu_mul(gate_up, "expert_act", per_row=shape.top_k)
    rows = ops.out("expert_rows", xn_RD.shape[1], per_row=shape.top_k)
    down = ops.weights.matrix((f"{experts}.down_proj",))
    ops.run("experts.expert_down", x=act, ids=ids_RT, weight=down, y=rows)
    return rows
