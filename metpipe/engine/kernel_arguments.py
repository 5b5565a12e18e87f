"""Turns a rule's `args` table into the tensors and scalars that a kernel is called with.

Sources are data (see docs/kernels.md): `1.in.0`, `0.weight`, `2.param.eps`, `step.positions`, ...;
the number counts the rule's pattern elements. A node that runs over sequences (rows `s`) reads the
LAST rows of its inputs: the head reads the last row of a prefill.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from metpipe.circuit import Circuit, Group, Node, Source
from metpipe.engine.weights import Weights
from metpipe.errors import ConfigError

__all__ = ["Argument", "ArgumentSources"]

Argument = torch.Tensor | int | float | str | None | list["Argument"]


@dataclass(frozen=True, slots=True)
class ArgumentSources:
    """Everything that a source may name, for one program."""

    circuit: Circuit
    weights: Weights
    edges: Mapping[str, torch.Tensor]
    """edge id -> [rows, dim], for edges that stay in memory"""
    states: Mapping[str, torch.Tensor]
    snapshots: Mapping[str, torch.Tensor]
    """state id -> f32 [snapshot rows, E]: what `step.snapshots` of a row names; recurrent states"""
    rope: Callable[[Node], tuple[torch.Tensor, torch.Tensor]]
    step: Mapping[str, torch.Tensor | int]
    rows_of: Callable[[str], int]
    """edge id -> its rows in this program"""

    def resolve(self, source: Source, group: Group) -> Argument:
        """The value of one source for one group."""
        if not isinstance(source, str):
            return [self.resolve(item, group) for item in source]
        head, _, rest = source.partition(".")
        match head:
            case "step":
                return self.step[rest]
            case "dim":
                return self.circuit.dims[rest]
            case "workspace":
                raise ConfigError(
                    f"{group.rule.source}, rule {group.rule.id}: {source!r}: programs of this "
                    "version give no workspaces; keep what the kernel needs on its stack"
                )
        return self._of_node(self.circuit.nodes[group.nodes[int(head)]], rest)

    def _of_node(self, node: Node, what: str) -> Argument:
        kind, _, name = what.partition(".")
        match kind:
            case "in":
                return self._input(node, int(name))
            case "out":
                return self.edges[node.outputs[int(name)]]
            case "weight":
                return self.weights.matrix(node.binding)
            case "bias":
                return self.weights.bias(node.binding) if node.has_bias else None
            case "param":
                return _scalar(node.params[name])
            case "rope":
                return self.rope(node)[("cos", "sin").index(name)]
            case "state":
                return self.states[self._state_id(node, name)]
            case "steps":
                return self.snapshots[self._state_id(node, name)]
            case "tensor":
                return self._small_tensor(node, name)
        raise AssertionError(f"the rule parser let the source {what!r} through")

    def _input(self, node: Node, index: int) -> torch.Tensor:
        edge = self.edges[node.inputs[index]]
        if not node.outputs or self.circuit.edges[node.outputs[0]].rows != "s":
            return edge
        return edge[edge.shape[0] - self.rows_of(node.outputs[0]) :]

    def _small_tensor(self, node: Node, local: str) -> torch.Tensor:
        for tensor in node.tensors:
            if tensor.local == local:
                return self.weights.tensor(tensor.name)
        raise AssertionError(f"node {node.id} has no tensor {local!r}; the plan is checked for it")

    def _state_id(self, node: Node, local: str) -> str:
        for state_id in node.state:
            if self.circuit.states[state_id].local == local:
                return state_id
        raise AssertionError(
            f"node {node.id} has no state {local!r}; the rule parser checks states"
        )


def _scalar(text: str) -> int | float | str:
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text
