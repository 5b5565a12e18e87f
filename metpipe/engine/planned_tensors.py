"""Whether the weights beside a config are that config's model: from the files' headers alone.

A plan counts the tensors that the circuit binds. Where the headers say what is there, a tensor that
is missing or of another shape shows that the plan is of another model than the files.
"""

from __future__ import annotations

from collections.abc import Iterator

from metpipe.circuit import Circuit, Node, node_weight_shapes, parse_format
from metpipe.circuit.vocabulary import OPS
from metpipe.engine.checkpoints import Checkpoint, check_tensors
from metpipe.engine.checkpoints.protocol import Shape
from metpipe.engine.weights import weight_shapes
from metpipe.errors import ConfigError

__all__ = ["check_planned"]

PLAIN = ("F32", "F16", "BF16")
"""Stored types of a weight that is declared in bf16: an engine rounds the others to it."""
PACKED = ("_packed", "_blocks")
"""What the name of a weight ends with when its values are packed."""


def check_planned(checkpoint: Checkpoint, circuit: Circuit) -> None:
    """Refuse to plan weights that are not there; nothing is asked of a config that stands alone.

    Of a quantised checkpoint only what is certain: a tensor that is there under no spelling, and
    the shape of one that is stored with no scales.

    Raises:
        ConfigError: naming the first tensor that is missing, or of another shape or type.
    """
    if not checkpoint.has_weights:
        return
    if any(_is_quantised(node) for node in circuit.nodes):
        if wrong := dict(_surely_wrong(checkpoint, circuit)):
            check_tensors(checkpoint, wrong)
        return
    check_tensors(checkpoint, weight_shapes(circuit, checkpoint.tensors))
    if checkpoint.reader == "safetensors":
        _refuse_types(checkpoint, circuit)


def _surely_wrong(checkpoint: Checkpoint, circuit: Circuit) -> Iterator[tuple[str, Shape]]:
    """(name, shape that the circuit binds) of what no spelling of a format explains."""
    found, there = checkpoint.tensors, _spellings(checkpoint)
    for node in circuit.nodes:
        for name, shape in node_weight_shapes(circuit, node, there):
            is_plain = checkpoint.types.get(name) in PLAIN and not _is_quantised(node)
            if name not in there or (is_plain and found[name] != shape):
                yield name, shape


def _spellings(checkpoint: Checkpoint) -> frozenset[str]:
    """Names that a circuit may bind for what is stored: packed or not, a module or its weight."""
    names = set(checkpoint.tensors)
    for suffix in PACKED:
        names |= {name.removesuffix(suffix) for name in names}
    return frozenset(names | {name.removesuffix(".weight") for name in names})


def _refuse_types(checkpoint: Checkpoint, circuit: Circuit) -> None:
    for node in circuit.nodes:
        if OPS[node.op].weight not in ("matrix", "table"):
            continue
        for name, _ in node_weight_shapes(circuit, node, checkpoint.tensors):
            if (stored := checkpoint.types[name]) not in PLAIN:
                raise ConfigError(
                    f"{checkpoint.source}: tensor {name} is stored as {stored}, and the config "
                    "declares bf16: it has no quantization_config; config and weights are of "
                    "different exports, fetch them together"
                )


def _is_quantised(node: Node) -> bool:
    return node.weight_format is not None and parse_format(node.weight_format).is_quantised
