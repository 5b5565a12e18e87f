"""Resolves the texts of a node template against a model: params, bindings, formats, sizes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit.description import NodeText
from metpipe.circuit.dims import holds
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.ir import BoundTensor
from metpipe.circuit.precision import Precision
from metpipe.circuit.vocabulary import OPS

__all__ = [
    "Modules",
    "Shape",
    "node_binding",
    "node_binding_rows",
    "node_has_bias",
    "node_matrix",
    "node_params",
    "node_stacked",
    "node_tensors",
    "node_weight_format",
]

PLACEHOLDER = re.compile(r"\{(?:rsqrt\((\w+)\)|(\w+))\}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes: the kind of each layer, the dims, and params carried as text."""

    layer_kinds: tuple[str, ...]
    dims: Mapping[str, int]
    params: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Modules:
    """What `{M}` (the model's module) and `{L}` (a layer's) stand for in checkpoint names."""

    root: str | None
    layer: str | None

    def within(self, pattern: str, where: str) -> str:
        """The pattern with both filled in."""
        for mark, module, owner in (("{L}", self.layer, "layer"), ("{M}", self.root, "model")):
            if mark not in pattern:
                continue
            if module is None:
                raise BadCircuit(
                    f"{where}: {pattern!r} needs a {owner}'s module, and there is none"
                )
            pattern = pattern.replace(mark, module)
        return pattern


def node_binding(text: NodeText, shape: Shape, modules: Modules) -> tuple[str, ...]:
    """The checkpoint modules of a node."""
    patterns = text.binding
    for switch, replacement in text.binding_when.items():
        if holds(switch, shape.dims, text.where):
            patterns = replacement
    return tuple(modules.within(pattern, text.where) for pattern in patterns)


def node_stacked(text: NodeText, modules: Modules) -> str | None:
    """The tensor in which a checkpoint may store all experts of the node."""
    if text.stacked is None:
        return None
    op = OPS.get(text.op)
    if op is None or not op.per_expert:
        raise BadCircuit(f"{text.where}: stacked is for the ops of experts, and it is a {text.op}")
    return modules.within(text.stacked, text.where)


def node_tensors(text: NodeText, shape: Shape, modules: Modules) -> tuple[BoundTensor, ...]:
    """The small tensors that a node reads beside its weight."""
    return tuple(
        BoundTensor(
            tensor.id,
            modules.within(tensor.tensor, text.where),
            tuple(axis.value(shape.dims, text.where) for axis in tensor.shape),
        )
        for tensor in text.tensors
    )


def node_weight_format(
    text: NodeText, binding: tuple[str, ...], precision: Precision, node_id: str
) -> str | None:
    """The format of a node's weight; only matrices are ever quantised."""
    if not binding:
        return None
    op = OPS.get(text.op)
    if text.unquantized or op is None or op.weight != "matrix":
        return "bf16"
    return precision.weight_format(binding, node_id)


def node_matrix(text: NodeText, shape: Shape) -> tuple[int, int] | None:
    """(out, k) of a node that states it."""
    if text.matrix is None:
        return None
    out, k = (axis.value(shape.dims, text.where) for axis in text.matrix)
    return out, k


def node_binding_rows(
    text: NodeText, shape: Shape, binding: tuple[str, ...], out: int
) -> tuple[int, ...]:
    """How many of the `out` output rows each bound module gives; equal shares unless stated."""
    if not binding:
        return ()
    if text.binding_rows:
        return tuple(rows.value(shape.dims, text.where) for rows in text.binding_rows)
    if out % len(binding):
        raise BadCircuit(
            f"{text.where}: {out} rows are no equal shares of {len(binding)} modules; state "
            "binding_rows"
        )
    return (out // len(binding),) * len(binding)


def node_has_bias(text: NodeText, shape: Shape) -> bool:
    """Whether the node adds a bias in this model."""
    if text.bias is None or text.bias == "always":
        return text.bias is not None
    return holds(text.bias, shape.dims, text.where)


def node_params(text: NodeText, shape: Shape) -> dict[str, str]:
    """The node's params with `{dim}`, `{param}` and `{rsqrt(dim)}` (= 1 / sqrt(dim)) filled in."""
    params = dict(text.params)
    for switch, replaced in text.params_when.items():
        if holds(switch, shape.dims, text.where):
            params.update(replaced)
    return {name: _filled(value, text, shape) for name, value in params.items()}


def _filled(value: str, text: NodeText, shape: Shape) -> str:
    def replace(match: re.Match[str]) -> str:
        root, name = match[1], match[2]
        if root is not None and root in shape.dims:
            return repr(1.0 / math.sqrt(shape.dims[root]))
        if name in shape.dims:
            return str(shape.dims[name])
        if name in shape.params:
            return shape.params[name]
        raise BadCircuit(
            f"{text.where}: the param {value!r} names {root or name!r}, which is neither a dim nor "
            "a param of the model"
        )

    return PLACEHOLDER.sub(replace, value)
