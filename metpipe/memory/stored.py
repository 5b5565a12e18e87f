"""What a node's checkpoint tensors weigh, each matrix in the format that the circuit declares."""

from __future__ import annotations

import math
from collections.abc import Iterable

from metpipe.circuit import Circuit, Node, node_weight_shapes, parse_format, weight_matrix
from metpipe.circuit import weight_bytes as matrix_bytes
from metpipe.circuit.vocabulary import OPS
from metpipe.memory.formulas import WEIGHT_ELEMENT_BYTES, weight_bytes

__all__ = ["quantised_formats", "stored_bytes"]


def quantised_formats(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The formats with scales that the nodes' matrices have, sorted."""
    formats = {node.weight_format for node in nodes if node.weight_format is not None}
    return tuple(sorted(spelling for spelling in formats if parse_format(spelling).is_quantised))


def stored_bytes(circuit: Circuit, node: Node) -> int:
    """Bytes of everything the node binds; what is no matrix of it (a bias, a tensor) is in bf16.

    Raises:
        ConfigError: a matrix does not divide into the groups of its format.
    """
    if node.weight_format is None or not quantised_formats([node]):
        return weight_bytes(shape for _, shape in node_weight_shapes(circuit, node))
    experts = circuit.dims["experts"] if OPS[node.op].per_expert else 1
    matrix = matrix_bytes(node.weight_format, *weight_matrix(circuit, node))
    beside = sum(math.prod(tensor.shape) for tensor in node.tensors)
    if node.has_bias:
        beside += sum(node.binding_rows)
    return experts * matrix + beside * WEIGHT_ELEMENT_BYTES
