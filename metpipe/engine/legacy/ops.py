"""One kernel launch an op, each into a buffer of its own name: what hand-written blocks call.

Shapes: R rows of the step, D features. All bf16 unless said otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.forward import Kernels, LegacyStep
from metpipe.engine.program import Launch
from metpipe.engine.weights import Weights

__all__ = ["Buffers", "Ops", "Rope"]

Rope = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines, f32 [positions, rotary_dim / 2] each."""
Pools = tuple[torch.Tensor, torch.Tensor]
"""Keys and values, bf16 [tokens, KV heads * head_dim] each."""


@dataclass(slots=True)
class Buffers:
    """Named buffers that stay where they are, each made at its first use for the widest step."""

    allocator: Allocator
    _held: dict[str, torch.Tensor] = field(default_factory=dict)

    def rows(self, name: str, rows: int, most: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
        """The first `rows` of the [most, dim] rows of this name's buffer."""
        if name not in self._held:
            self._held[name] = self.allocator.take("legacy", name, (most, dim), dtype)
        return self._held[name][:rows]

    def close(self) -> None:
        """Give every buffer back."""
        for buffer in self._held.values():
            self.allocator.free(buffer)
        self._held.clear()


@dataclass(frozen=True, slots=True)
class Ops:
    """Binds the ops of one step over `rows` rows, in the order in which they are called."""

    kernels: Kernels
    weights: Weights
    step: Mapping[str, torch.Tensor | int]
    buffers: Buffers
    eps: float
    weight_form: str
    """of norms: plain, or one_plus: times 1 + weight"""
    rows: int
    most: int
    """rows of the widest step"""
    section: str = ""
    """precedes the buffers' names, so that a draft step leaves the target's alone"""
    launches: list[Launch] = field(default_factory=list)

    def narrowed(self, rows: int, most: int) -> Ops:
        """The same step where only its last rows go on: the head."""
        return replace(self, rows=rows, most=most)

    def run(self, kernel: str, **arguments: object) -> None:
        """Bind one launch."""
        self.launches.append(self.kernels[kernel](**arguments))

    def out(
        self, name: str, dim: int, dtype: torch.dtype = torch.bfloat16, per_row: int = 1
    ) -> torch.Tensor:
        """The buffer [rows * per_row, dim] of this name."""
        rows, most = self.rows * per_row, self.most * per_row
        return self.buffers.rows(f"{self.section}{name}", rows, most, dim, dtype)

    def of_step(self, name: str) -> torch.Tensor:
        """The step input of this name, [R] or [R, columns]."""
        buffer = self.step[name]
        assert isinstance(buffer, torch.Tensor), name
        return buffer[: self.rows]

    def embed(self, module: str, name: str) -> torch.Tensor:
        """The table's row of each token: [R, D]."""
        table = self.weights.matrix((module,))
        y = self.out(name, table.shape[1])
        self.run("embed.embed", token_ids=self.of_step("token_ids"), table=table, y=y)
        return y

    def norm(self, x: torch.Tensor, module: str, name: str) -> torch.Tensor:
        """The norm of each row, times its weight."""
        y, weight = self.out(name, x.shape[1]), self.weights.matrix((module,))
        self.run("norm.rms_norm", x=x, weight=weight, y=y, **self._norm_arguments())
        return y

    def head_norm(self, x: torch.Tensor, module: str, name: str) -> torch.Tensor:
        """The norm of each head of a row, times its weight."""
        y, weight = self.out(name, x.shape[1]), self.weights.matrix((module,))
        self.run("norm.head_norm", x=x, weight=weight, y=y, **self._norm_arguments())
        return y

    def linear(
        self, x: torch.Tensor, name: str, *modules: str, has_bias: bool = False
    ) -> torch.Tensor:
        """X through one matrix: the modules' rows one after another."""
        weight = self.weights.matrix(modules)
        bias = self.weights.bias(modules) if has_bias else None
        y = self.out(name, weight.shape[0])
        self.run("linear.linear", x=x, weight=weight, bias=bias, y=y)
        return y

    def silu_mul(self, gate_up: torch.Tensor, name: str, per_row: int = 1) -> torch.Tensor:
        """silu(gate) * up, of gate||up side by side."""
        y = self.out(name, gate_up.shape[1] // 2, per_row=per_row)
        self.run("activation.silu_mul", gate_up=gate_up, y=y)
        return y

    def add(self, stream: torch.Tensor, delta: torch.Tensor, name: str) -> torch.Tensor:
        """Their sum, which is the stream from here on."""
        y = self.out(name, stream.shape[1])
        self.run("residual.residual_add", stream=stream, delta=delta, y=y)
        return y

    def rotate(
        self, q: torch.Tensor, k: torch.Tensor, rope: Rope, head_dim: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and keys [R, heads * head_dim], each head turned by its row's position."""
        q_out, k_out = self.out("q_rotated", q.shape[1]), self.out("k_rotated", k.shape[1])
        cos, sin = rope
        self.run(
            "rope.rope",
            q=q,
            k=k,
            cos=cos,
            sin=sin,
            positions=self.of_step("positions"),
            q_out=q_out,
            k_out=k_out,
            head_dim=head_dim,
        )
        return q_out, k_out

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pools: Pools, head_dim: int
    ) -> torch.Tensor:
        """Write keys and values to the pools, then each row over its sequence's tokens so far."""
        a = self.out("attended", q.shape[1])
        k_pool, v_pool = pools
        where = {
            "positions": self.of_step("positions"),
            "block_table": self.of_step("block_table"),
            "block_size": self.step["block_size"],
            "k_pool": k_pool,
            "v_pool": v_pool,
        }
        self.run("kv.kv_write", k=k, v=v, **where)
        scale = 1.0 / math.sqrt(head_dim)
        self.run("attention.paged_attention", q=q, y=a, scale=scale, head_dim=head_dim, **where)
        return a

    def head(
        self, x: torch.Tensor, norm: str, module: str, hidden: torch.Tensor | None
    ) -> LegacyStep:
        """Final norm, logits and greedy choice of the stream's last rows; all that was launched."""
        xn = self.norm(x[x.shape[0] - self.rows :], norm, "head_in")
        logits = self.linear(xn, "logits", module)
        tokens = self.out("tokens", 1, torch.int32)
        self.run("head.argmax", logits=logits, tokens=tokens)
        return LegacyStep(tuple(self.launches), logits, tokens, hidden)

    def _norm_arguments(self) -> dict[str, object]:
        return {"eps": self.eps, "weight_form": self.weight_form}
