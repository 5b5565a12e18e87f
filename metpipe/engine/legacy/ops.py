"""One kernel launch an op, each into a buffer of its own name: what hand-written blocks call.

Shapes: R rows of the step, D features. All bf16 unless said otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from metpipe.engine.allocator import Allocator
from metpipe.engine.legacy.forward import Kernels
from metpipe.engine.program import Launch
from metpipe.engine.weights import Weights

__all__ = ["Buffers", "Ops"]


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
        """The norm of each row, times 1 + weight."""
        y = self.out(name, x.shape[1])
        weight = self.weights.matrix((module,))
        self.run("norm.rms_norm", x=x, weight=weight, y=y, eps=self.eps, weight_form="one_plus")
        return y

    def head_norm(self, x: torch.Tensor, module: str, name: str) -> torch.Tensor:
        """The norm of each head of a row, times 1 + weight."""
        y = self.out(name, x.shape[1])
        weight = self.weights.matrix((module,))
        self.run("norm.head_norm", x=x, weight=weight, y=y, eps=self.eps, weight_form="one_plus")
        return y

    def linear(self, x: torch.Tensor, name: str, *modules: str) -> torch.Tensor:
        """X through one matrix: the modules' rows one after another; no bias."""
        weight = self.weights.matrix(modules)
        y = self.out(name, weight.shape[0])
        self.run("linear.linear", x=x, weight=weight, bias=None, y=y)
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
