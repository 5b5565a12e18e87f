"""Which checkpoint tensors a node reads, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator

from metpipe.circuit.ir import Circuit, Node
from metpipe.circuit.vocabulary import OPS

__all__ = ["node_weight_shapes", "weight_matrix"]


def node_weight_shapes(circuit: Circuit, node: Node) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """(tensor name, shape) of every tensor the node reads: weights, then biases, then extra ones.

    A module `experts.*.up` stands for each of the `experts` modules.
    """
    listed: list[tuple[str, tuple[int, ...]]] = []
    for module, rows in zip(node.binding, node.binding_rows, strict=True):
        for name in _expanded(circuit, module):
            listed.append((f"{name}.weight", _weight_shape(circuit, node, rows)))
    if node.has_bias:
        for module, rows in zip(node.binding, node.binding_rows, strict=True):
            listed += [(f"{name}.bias", (rows,)) for name in _expanded(circuit, module)]
    return (*listed, *((tensor.name, tensor.shape) for tensor in node.tensors))


def weight_matrix(circuit: Circuit, node: Node) -> tuple[int, int]:
    """(out, k) of the node's matrix, all its modules together (one expert of an expert op)."""
    return sum(node.binding_rows), circuit.edges[node.inputs[0]].dim


def _weight_shape(circuit: Circuit, node: Node, rows: int) -> tuple[int, ...]:
    match OPS[node.op].weight:
        case "table":
            return (circuit.dims["vocab"], circuit.edges[node.outputs[0]].dim)
        case "matrix":
            return (rows, circuit.edges[node.inputs[0]].dim)
        case "vector" if node.params.get("scope") == "head":
            return (circuit.dims["head_dim"],)
    return (rows,)


def _expanded(circuit: Circuit, module: str) -> Iterator[str]:
    if ".*." not in module:
        yield module
        return
    for expert in range(circuit.dims["experts"]):
        yield module.replace(".*.", f".{expert}.")
