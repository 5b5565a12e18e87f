"""Every kernel of the hybrid families in one chain, beside the dense one of chain.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from tests.kernels.cpu.hybrid import EXPERTS, Layer
from tests.kernels.cpu.values import make

ROWS = 5
SLOTS = (0, 2, 2, 1, 2)
STEP_ROWS = (-1, 3, 0, 4, 5)


def run_hybrid_chain(functions: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
    """Runs every kernel once on values of a class; outputs and states by name."""
    written: dict[str, torch.Tensor] = {}
    _delta(functions, kind, written)
    _experts(functions, kind, written)
    return written


def _delta(functions: Mapping[str, Any], kind: str, written: dict[str, torch.Tensor]) -> None:
    layer = Layer(k_heads=2, heads=4, dk=67, dv=147, kind=kind)
    slots = torch.tensor(SLOTS, dtype=torch.int32)
    dim, heads, channels = layer.heads * layer.dv, layer.heads, layer.channels

    def out(name: str, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        written[name] = torch.zeros(shape, dtype=dtype)
        return written[name]

    def call(kernel: str, **arguments: Any) -> None:
        functions[kernel](**arguments)()

    x, weight, bf16 = make(kind, 1, ROWS, 64), make("cancelling", 2, 2 * heads, 64), torch.bfloat16
    ba = out("ba", ROWS, 2 * heads, dtype=bf16)
    call("linear.linear", x=x, weight=weight, bias=None, y=ba)
    both = {name: out(name, ROWS, heads) for name in ("decay", "beta")}
    call("gates.gdn_gates", ba=ba, **layer.gates(), **both)
    again = {name: out(f"linear_{name}", ROWS, heads) for name in both}
    call("gates.linear_gates", x=x, weight=weight, **layer.gates(), **again)
    conv, qkvz = layer.conv(), layer.qkvz(ROWS)
    written |= {"conv": conv["conv"], "h": layer.states(), "h_fused": layer.states()}
    y, qkv = out("conv_out", ROWS, channels), out("qkv", ROWS, channels)
    to = {"slots": slots, "step_rows": torch.tensor(STEP_ROWS, dtype=torch.int32)}
    states = ("conv", "h", "h_fused")
    left = {name: out(f"{name}_steps", ROWS, written[name].shape[1]) for name in states}
    windows = {**to, "steps": left["conv"]}
    call("conv.conv1d_update", x=qkvz, y=y, **windows, **conv)
    call("conv.l2_norm", x=y, y=qkv, **layer.norm())
    fused = out("conv_fused", ROWS, channels)
    call("conv.conv_l2_norm", x=qkvz, y=fused, **windows, **conv, **layer.norm())
    given = {**layer.recurrence(ROWS), "qkv": qkv, **both}
    core = out("core", ROWS, dim)
    call("delta.gdn_recurrence", h=written["h"], y=core, steps=left["h"], **to, **given)
    gated = out("gated", ROWS, dim, dtype=bf16)
    call("gated_norm.gated_rms_norm", x=core, y=gated, **layer.gated(ROWS))
    whole = out("gated_fused", ROWS, dim, dtype=bf16)
    call(
        "delta.recurrence_norm",
        h=written["h_fused"],
        y=whole,
        steps=left["h_fused"],
        **to,
        **given,
        **layer.gated(ROWS),
    )
    first, second = (out(name, ROWS, dim // 2, dtype=bf16) for name in ("first", "second"))
    call("split.split_heads", both=gated, first=first, second=second, head_dim=dim // 4)
    call("gates.sigmoid_gate_mul", x=first, gate=second, y=out("mul", ROWS, dim // 2, dtype=bf16))
    call("split.concat", first=second, second=first, y=out("joined", ROWS, dim, dtype=bf16))
    normed = out("one_plus", ROWS, dim // 2, dtype=bf16)
    vector = make("normal", 3, dim // 2)
    call("norm.rms_norm", x=first, weight=vector, y=normed, eps=1e-6, weight_form="one_plus")


def _experts(functions: Mapping[str, Any], kind: str, written: dict[str, torch.Tensor]) -> None:
    size = replace(EXPERTS[2], kind=kind, inter=700)
    pairs = ROWS * size.count

    def out(name: str, *shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        written[name] = torch.zeros(shape, dtype=dtype)
        return written[name]

    def call(kernel: str, **arguments: Any) -> None:
        functions[kernel](**arguments)()

    x, logits = size.x(ROWS), out("router_logits", ROWS, size.experts)
    call("linear.linear", x=x, weight=size.router(), bias=None, y=logits)
    for name in ("", "fused_"):
        weights = out(f"{name}weights", ROWS, size.count, dtype=torch.float32)
        ids = out(f"{name}ids", ROWS, size.count, dtype=torch.int32)
        if name:
            given = {"x": x, "weight": size.router()}
            call("router.router_top_k", **given, weights=weights, ids=ids, count=size.count)
        else:
            call("router.top_k", logits=logits, weights=weights, ids=ids, count=size.count)
    chosen = {"x": x, "ids": ids, "weight": size.gate_up()}
    gate_up, act = out("expert_gate_up", pairs, 2 * size.inter), out("act", pairs, size.inter)
    call("experts.expert_gate_up", **chosen, y=gate_up)
    call("experts.gate_up_silu", **chosen, y=act)
    down = {"x": act, "ids": ids, "weight": size.down()}
    rows, y = out("routed", pairs, size.hidden), out("blended", ROWS, size.hidden)
    call("experts.expert_down", **down, y=rows)
    edges = {"shared": make(kind, 4, ROWS, size.hidden), "shared_gate": make(kind, 5, ROWS, 1)}
    call("blend.blend", rows=rows, weights=weights, **edges, y=y)
    fused = out("blended_fused", ROWS, size.hidden)
    call("down_blend.down_blend", **down, weights=weights, **edges, y=fused)
    whole = out("blended_whole", ROWS, size.hidden)
    call("down_blend.shared_down_blend", **down, weights=weights, **size.shared(ROWS), y=whole)
