"""The served weights on the device, loaded once per process.

A linear whose node binds several modules (gate and up) is ONE matrix, the modules' rows one after
another. Every tensor is taken through the allocator with its exact size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from metpipe.circuit import Circuit, node_weight_shapes
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints.protocol import Checkpoint

__all__ = ["Weights", "load_weights", "weight_shapes"]

Binding = tuple[str, ...]


@dataclass(slots=True)
class Weights:
    """binding (checkpoint modules) -> matrix [out, k] or vector [dim]; the same for biases."""

    matrices: dict[Binding, torch.Tensor] = field(default_factory=dict)
    biases: dict[Binding, torch.Tensor] = field(default_factory=dict)

    def matrix(self, binding: Binding) -> torch.Tensor:
        """The weight of a node that binds these modules."""
        return self.matrices[binding]

    def bias(self, binding: Binding) -> torch.Tensor:
        """The bias [out] of a node that binds these modules."""
        return self.biases[binding]


def weight_shapes(circuit: Circuit) -> dict[str, tuple[int, ...]]:
    """Checkpoint tensor name -> shape, for every tensor that the circuit binds."""
    return {
        name: shape for node in circuit.nodes for name, shape in node_weight_shapes(circuit, node)
    }


def load_weights(
    circuit: Circuit,
    checkpoint: Checkpoint,
    allocator: Allocator,
    on_tensor: Callable[[int], object] = lambda _: None,
) -> Weights:
    """Read every bound tensor once; `on_tensor` gets the number of those just read."""
    weights = Weights()
    for node in circuit.nodes:
        shapes = node_weight_shapes(circuit, node)
        if not shapes or node.binding in weights.matrices:
            continue
        for suffix, table in ((".weight", weights.matrices), (".bias", weights.biases)):
            parts = {name: shape for name, shape in shapes if name.endswith(suffix)}
            if parts:
                table[node.binding] = _stack(parts, checkpoint, allocator)
                on_tensor(len(parts))
    return weights


def _stack(
    parts: Mapping[str, tuple[int, ...]], checkpoint: Checkpoint, allocator: Allocator
) -> torch.Tensor:
    """One tensor that holds the parts' rows in order."""
    shapes = list(parts.values())
    shape = (sum(part[0] for part in shapes), *shapes[0][1:])
    whole = allocator.take("weights", "+".join(parts), shape, torch.bfloat16)
    row = 0
    for name, part in parts.items():
        whole[row : row + part[0]].copy_(checkpoint.read(name))
        row += part[0]
    return whole
