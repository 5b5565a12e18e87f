"""Which checkpoint tensors a node reads, and their shapes."""

from __future__ import annotations

from collections.abc import Container, Iterator
from fnmatch import fnmatchcase

from metpipe.circuit.ir import Circuit, Node
from metpipe.circuit.vocabulary import OPS

__all__ = ["is_outside", "node_weight_shapes", "weight_matrix"]

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
NOTHING: frozenset[str] = frozenset()


def node_weight_shapes(circuit: Circuit, node: Node, stored: Container[str] = NOTHING) -> Shapes:
    """(tensor name, shape) of every tensor the node reads: weights, then biases, then extra ones.

    A module `experts.*.up` stands for each of the `experts` modules: expert by expert, within
    each the modules in their order, [out, k] each. A checkpoint that keeps them in one tensor
    [experts, out, k], or [experts, k, out], is recognised by its tensor names, `stored`; the bytes
    are the same.
    """
    listed: list[tuple[str, tuple[int, ...]]] = []
    if node.stacked is not None and node.stacked in stored:
        out, k = weight_matrix(circuit, node)
        matrix = (k, out) if node.is_stacked_transposed else (out, k)
        listed.append((node.stacked, (circuit.dims["experts"], *matrix)))
    else:
        listed += _modules(circuit, node)
    if node.has_bias:
        for module, rows in zip(node.binding, node.binding_rows, strict=True):
            listed.append((f"{module}.bias", (rows,)))
    return (*listed, *((tensor.name, tensor.shape) for tensor in node.tensors))


def weight_matrix(circuit: Circuit, node: Node) -> tuple[int, int]:
    """(out, k) of the node's matrix, all its modules together (one expert of an expert op)."""
    if node.matrix is not None:
        return node.matrix
    return sum(node.binding_rows), circuit.edges[node.inputs[0]].dim


def is_outside(circuit: Circuit, tensor: str) -> bool:
    """Whether no node binds a tensor of the checkpoint by intent, as those of a vision tower."""
    return any(fnmatchcase(tensor, pattern) for pattern in circuit.outside)


def _modules(circuit: Circuit, node: Node) -> Iterator[tuple[str, tuple[int, ...]]]:
    numbers = range(circuit.dims["experts"]) if OPS[node.op].per_expert else (None,)
    for number in numbers:
        for module, rows in zip(node.binding, node.binding_rows, strict=True):
            name = module if number is None else module.replace(".*.", f".{number}.")
            yield name if node.is_bare else f"{name}.weight", _weight_shape(circuit, node, rows)


def _weight_shape(circuit: Circuit, node: Node, rows: int) -> tuple[int, ...]:
    match OPS[node.op].weight:
        case "table":
            return (circuit.dims["vocab"], circuit.edges[node.outputs[0]].dim)
        case "matrix":
            return (rows, weight_matrix(circuit, node)[1])
        case "vector" if node.params.get("scope") == "head":
            # A head is the attention's unless the node states its own.
            stated = node.params.get("head_dim")
            return (int(stated) if stated is not None else circuit.dims["head_dim"],)
    return (rows,)
