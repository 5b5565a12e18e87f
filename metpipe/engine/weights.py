"""The served weights on the device, loaded once per process.

A linear whose node binds several modules (gate and up) is ONE matrix, the modules' rows one after
another; the experts of a node are ONE tensor [experts, out, k], whether the checkpoint stores them
stacked or one by one. Every tensor is taken through the allocator with its exact size, in bf16:
what a checkpoint stores wider (a recurrence's A_log, in f32) is rounded to nearest even, since the
kernels read bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from metpipe.circuit import Circuit, Node, node_weight_shapes, weight_matrix
from metpipe.circuit.vocabulary import OPS
from metpipe.engine.allocator import Allocator
from metpipe.engine.checkpoints.protocol import Checkpoint

__all__ = ["Bound", "Weights", "bound_tensors", "load_weights", "weight_shapes"]

Binding = tuple[str, ...]
Shape = tuple[int, ...]


@dataclass(slots=True)
class Weights:
    """Everything that nodes bind, in bf16: weights and biases by binding, small tensors by name."""

    matrices: dict[Binding, torch.Tensor] = field(default_factory=dict)
    """binding (checkpoint modules) -> matrix [out, k], vector [dim] or experts [experts, out, k]"""
    biases: dict[Binding, torch.Tensor] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)
    """checkpoint name -> a small tensor that a node reads beside its weight"""

    def matrix(self, binding: Binding) -> torch.Tensor:
        """The weight of a node that binds these modules."""
        return self.matrices[binding]

    def bias(self, binding: Binding) -> torch.Tensor:
        """The bias [out] of a node that binds these modules."""
        return self.biases[binding]

    def tensor(self, name: str) -> torch.Tensor:
        """The small tensor of this whole checkpoint name."""
        return self.tensors[name]


def weight_shapes(circuit: Circuit, stored: Container[str] = ()) -> dict[str, Shape]:
    """Checkpoint tensor name -> shape, for every tensor that the circuit binds.

    `stored`: the checkpoint's tensor names, by which experts that it stacks are recognised.
    """
    return {
        name: shape
        for node in circuit.nodes
        for name, shape in node_weight_shapes(circuit, node, stored)
    }


@dataclass(frozen=True, slots=True)
class Bound:
    """What a node reads of a checkpoint: tensor name -> shape, in the order of node_weight_shapes.

    `weight` and `bias` hold the parts of one tensor each; `weight_shape` is the whole weight's.
    """

    weight: Mapping[str, Shape]
    weight_shape: Shape
    bias: Mapping[str, Shape]
    small: Mapping[str, Shape]

    @property
    def bias_shape(self) -> Shape:
        """[out]: the parts' lengths together."""
        return (sum(prod(shape) for shape in self.bias.values()),)


def bound_tensors(circuit: Circuit, node: Node, stored: Container[str] = ()) -> Bound:
    """A node's checkpoint tensors, told apart; `stored` as for `weight_shapes`."""
    small = {tensor.name: tensor.shape for tensor in node.tensors}
    biases = {f"{module}.bias" for module in node.binding} if node.has_bias else set()
    shapes = node_weight_shapes(circuit, node, stored)
    weight = {name: shape for name, shape in shapes if name not in small.keys() | biases}
    bias = {name: shape for name, shape in shapes if name in biases}
    return Bound(weight, _whole(circuit, node, list(weight.values())), bias, small)


def _whole(circuit: Circuit, node: Node, parts: list[Shape]) -> Shape:
    if not parts:
        return (0,)
    if OPS[node.op].per_expert:
        return (circuit.dims["experts"], *weight_matrix(circuit, node))
    return (sum(part[0] for part in parts), *parts[0][1:])


def load_weights(
    circuit: Circuit,
    checkpoint: Checkpoint,
    allocator: Allocator,
    on_tensor: Callable[[int], object] = lambda _: None,
) -> Weights:
    """Read every bound tensor once; `on_tensor` gets the number of those just read."""
    weights = Weights()

    def load(owner: str, shape: Shape, parts: Mapping[str, Shape]) -> torch.Tensor:
        whole = allocator.take("weights", owner, shape, torch.bfloat16)
        _fill(whole, parts, checkpoint)
        on_tensor(len(parts))
        return whole

    for node in circuit.nodes:
        found = bound_tensors(circuit, node, checkpoint.tensors)
        for name, shape in found.small.items():
            if name not in weights.tensors:
                weights.tensors[name] = load(name, shape, {name: shape})
        if not found.weight or node.binding in weights.matrices:
            continue
        owner = "+".join(node.binding)
        weights.matrices[node.binding] = load(owner, found.weight_shape, found.weight)
        if found.bias:
            weights.biases[node.binding] = load(f"{owner}, bias", found.bias_shape, found.bias)
    return weights


def _fill(whole: torch.Tensor, parts: Mapping[str, Shape], checkpoint: Checkpoint) -> None:
    """Copy the parts into one tensor, one after another."""
    flat, start = whole.view(-1), 0
    for name, shape in parts.items():
        end = start + prod(shape)
        flat[start:end].copy_(checkpoint.read(name).reshape(-1))
        start = end
