"""Hybrid models of two layers, straight from kernels: a gated delta net and a gated attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tests.kernels.cpu.tiny_model import (
    BLOCKS,
    EPS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    Functions,
    Mixer,
    Tables,
    TinyModel,
)

K_HEADS, V_HEADS, DK, DV = 1, 2, 16, 24
CHANNELS = 2 * K_HEADS * DK + V_HEADS * DV
EXPERTS, CHOSEN, INTER = 13, 3, 37
DUMMY = BLOCKS - 1
WIDEST = 64
ROTATED = 8


class TinyHybrid(TinyModel):
    """With a dense feed-forward. A sequence's slot has the number of its first block.

    A slot is NaN until its sequence is opened; each row but a sequence's last leaves its states.
    """

    shapes: Mapping[str, tuple[int, ...]] = {
        **TinyModel.shapes,
        "q": (2 * HEADS * HEAD_DIM, HIDDEN), "head_norm": (HEAD_DIM,),
        "qkvz": (CHANNELS + V_HEADS * DV, HIDDEN), "ba": (2 * V_HEADS, HIDDEN),
        "a_log": (V_HEADS,), "dt_bias": (V_HEADS,), "taps": (CHANNELS, 1, 4),
        "core_norm": (DV,), "gdn_out": (HIDDEN, V_HEADS * DV),
    }  # fmt: skip

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self._rope = {name: table[:, :ROTATED].contiguous() for name, table in self._rope.items()}
        sizes = {"h": V_HEADS * DK * DV, "conv": 4 * CHANNELS}
        self.slots = {name: torch.full((BLOCKS, size), torch.nan) for name, size in sizes.items()}
        self._left = {name: torch.full((WIDEST, size), torch.nan) for name, size in sizes.items()}
        self._slots = self._step_rows = torch.empty(0, dtype=torch.int32)

    def keep(self, row: int) -> None:
        """Put the states back that this row left, if its sequence had rows behind it."""
        if self._step_rows[row] >= 0:
            for name, left in self._left.items():
                self.slots[name][self._slots[row]] = left[self._step_rows[row]]

    def state(self, table: Sequence[int], count: int) -> tuple[int, ...]:
        """The digests of k, v, h and the window."""
        hash128 = self._call["hash.hash128"]
        recurrent = (hash128(pool[table[0]]) for pool in self.slots.values())
        return (*super().state(table, count), *recurrent)

    def _mixers(self, tables: Tables, positions: Sequence[int]) -> tuple[Mixer, ...]:
        slots = [table[0] for table in tables]
        for slot, position in zip(slots, positions, strict=True):
            if position == 0 and slot != DUMMY:
                for pool in self.slots.values():
                    pool[slot] = 0.0
        leaves = [slots[row : row + 2] == [slot] * 2 for row, slot in enumerate(slots)]
        at = [len(slots) - 1 - row if leaves_it else -1 for row, leaves_it in enumerate(leaves)]
        self._slots = torch.tensor(slots, dtype=torch.int32)
        self._step_rows = torch.tensor(at, dtype=torch.int32)
        return (self._delta_net, self._gated_attention)

    def _delta_net(self, xn: torch.Tensor, where: dict[str, Any], rows: int) -> torch.Tensor:
        w, qkvz = self.weights, self._linear(xn, "qkvz")
        heads = {"k_heads": K_HEADS, "k_dim": DK}
        to = {"slots": self._slots, "step_rows": self._step_rows}
        gates = {name: torch.full((rows, V_HEADS), torch.nan) for name in ("decay", "beta")}
        self._run(
            "gates.linear_gates", x=xn, weight=w["ba"], a_log=w["a_log"], dt_bias=w["dt_bias"],
            **gates,
        )  # fmt: skip
        qkv = torch.full((rows, CHANNELS), torch.nan)
        self._run(
            "conv.conv_l2_norm", x=qkvz, taps=w["taps"], conv=self.slots["conv"],
            steps=self._left["conv"], y=qkv, eps=EPS, **heads, **to,
        )  # fmt: skip
        core = self._out(rows, V_HEADS * DV)
        self._run(
            "delta.recurrence_norm", qkv=qkv, h=self.slots["h"], steps=self._left["h"],
            weight=w["core_norm"], gate=qkvz, gate_offset=CHANNELS, y=core, scale=DK**-0.5,
            eps=EPS, **gates, **heads, **to,
        )  # fmt: skip
        return self._linear(core, "gdn_out")

    def _gated_attention(self, xn: torch.Tensor, where: dict[str, Any], rows: int) -> torch.Tensor:
        both, k, v = (self._linear(xn, name) for name in ("q", "k", "v"))
        q, gate, rotated, a, gated = (self._out(rows, HEADS * HEAD_DIM) for _ in range(5))
        self._run("split.split_heads", both=both, first=q, second=gate, head_dim=HEAD_DIM)
        q, k = self._head_norm(q), self._head_norm(k)
        self._run(
            "rope.rope_write", q=q, k=k, v=v, **self._rope, **where, **self.pools,
            q_out=rotated, head_dim=HEAD_DIM,
        )  # fmt: skip
        self._run(
            "attention.paged_attention", q=rotated, **where, **self.pools, y=a,
            head_dim=HEAD_DIM, scale=HEAD_DIM**-0.5,
        )  # fmt: skip
        self._run("gates.sigmoid_gate_mul", x=a, gate=gate, y=gated)
        return self._linear(gated, "o")

    def _head_norm(self, x: torch.Tensor) -> torch.Tensor:
        y = self._out(*x.shape)
        weight = self.weights["head_norm"]
        self._run("norm.head_norm", x=x, weight=weight, y=y, eps=EPS, weight_form="one_plus")
        return y

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        y = self._out(*x.shape)
        weight = self.weights["norm"] - 1
        self._run("norm.rms_norm", x=x, weight=weight, y=y, eps=EPS, weight_form="one_plus")
        return y


class TinyMoe(TinyHybrid):
    """With routed experts and a shared one."""

    shapes: Mapping[str, tuple[int, ...]] = {
        **TinyHybrid.shapes, "router": (EXPERTS, HIDDEN), "shared_gate": (1, HIDDEN),
        "expert_gate_up": (EXPERTS, 2 * INTER, HIDDEN), "expert_down": (EXPERTS, HIDDEN, INTER),
    }  # fmt: skip

    def __init__(self, functions: Functions) -> None:
        super().__init__(functions)
        self.chosen: set[tuple[int, ...]] = set()

    def _feed_forward(self, xn: torch.Tensor, rows: int) -> torch.Tensor:
        w = self.weights
        weights = torch.full((rows, CHOSEN), torch.nan)
        ids = torch.full((rows, CHOSEN), -9, dtype=torch.int32)
        self._run(
            "router.router_top_k", x=xn, weight=w["router"], weights=weights, ids=ids, count=CHOSEN
        )
        self.chosen |= set(map(tuple, ids.tolist()))
        act = self._out(rows * CHOSEN, INTER)
        self._run("experts.gate_up_silu", x=xn, ids=ids, weight=w["expert_gate_up"], y=act)
        shared_x = self._out(rows, w["gate_up"].shape[0] // 2)
        self._run("linear.gate_up_silu", x=xn, weight=w["gate_up"], bias=None, y=shared_x)
        y = self._out(rows, HIDDEN)
        self._run(
            "down_blend.shared_down_blend", x=act, ids=ids, weight=w["expert_down"],
            weights=weights, shared_x=shared_x, shared_weight=w["down"], gate_x=xn,
            gate_weight=w["shared_gate"], y=y,
        )  # fmt: skip
        return y
