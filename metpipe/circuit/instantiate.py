"""Makes a circuit from a description and a model's shape: which block stands where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metpipe.circuit.blueprint import Blueprint
from metpipe.circuit.builder import CircuitBuilder, Place
from metpipe.circuit.description import Description
from metpipe.circuit.dims import holds
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.ir import Circuit
from metpipe.circuit.precision import BF16, Precision
from metpipe.circuit.template import Shape

__all__ = ["Shape", "instantiate"]


def instantiate(description: Description, shape: Shape, precision: Precision = BF16) -> Circuit:
    """The circuit of one model. Prefixes are `l{i}.{block}`, `draft.{block}` and `{block}`.

    Raises:
        BadCircuit: a dim is missing, a layer kind has no blocks, an edge is read that no earlier
            node wrote, or a switch, size or name does not resolve.
    """
    missing = [name for name in description.dims if name not in shape.dims]
    if missing:
        raise BadCircuit(f"{description.source}: the model's shape lacks the dim {missing[0]!r}")
    blueprint = Blueprint(description, shape, precision)
    shape = _with_derived(description, shape)
    builder = CircuitBuilder(description, shape, precision)
    for name in description.prologue:
        builder.add(name, Place(name))
    for layer, kind in enumerate(shape.layer_kinds):
        module = description.layer_module.replace("{i}", str(layer))
        for name in _layer_blocks(description, shape, layer, kind):
            builder.add(name, Place(f"l{layer}.{name}", module, layer=layer, layer_kind=kind))
    for name in description.epilogue:
        builder.add(name, Place(name))
    for name, draft_module in _draft_blocks(description, shape):
        builder.add(name, Place(f"draft.{name}", draft_module, section="draft"))
    return replace(builder.circuit(), blueprint=blueprint)


def _with_derived(description: Description, shape: Shape) -> Shape:
    """The shape with the dims that the description works out; none may be given already."""
    dims = dict(shape.dims)
    for name, expression in description.derived.items():
        where = f"{description.source}, derived {name}"
        if name in dims:
            raise BadCircuit(f"{where}: the model's shape gives that dim already")
        dims[name] = expression.value(dims, where)
    return replace(shape, dims=dims)


def _layer_blocks(description: Description, shape: Shape, layer: int, kind: str) -> tuple[str, ...]:
    layout, where = description.layout, f"{description.source}, layout"
    if layout.period is not None:
        _check_interval(layout.period, layer, kind, where)
    blocks: Mapping[str, tuple[str, ...]] = layout.blocks
    if layout.prefix is not None and layer < _prefix_length(description, shape):
        blocks = layout.prefix.blocks
    for switch, replaced in layout.when.items():
        if holds(switch, shape.dims, where):
            blocks = {**blocks, **replaced}
    if kind not in blocks:
        raise BadCircuit(f"{where}: layer {layer} is {kind}, and that kind has no blocks")
    return blocks[kind]


def _check_interval(period: int, layer: int, kind: str, where: str) -> None:
    wanted = "full_attention" if (layer + 1) % period == 0 else "linear_attention"
    if kind != wanted:
        raise BadCircuit(
            f"{where}: layer {layer} is {kind}, and with period {period} it must be {wanted}"
        )


def _prefix_length(description: Description, shape: Shape) -> int:
    prefix = description.layout.prefix
    assert prefix is not None
    if prefix.count not in shape.dims:
        raise BadCircuit(
            f"{description.source}, layout, prefix: count names {prefix.count!r}, which is no dim"
        )
    return shape.dims[prefix.count]


def _draft_blocks(description: Description, shape: Shape) -> list[tuple[str, str]]:
    where = f"{description.source}, draft"
    if description.draft_when and not holds(description.draft_when, shape.dims, where):
        return []
    listed = description.draft
    for switch, replacement in description.draft_variant.items():
        if holds(switch, shape.dims, where):
            listed = replacement
    return [_draft_block(description, entry, len(shape.layer_kinds)) for entry in listed]


def _draft_block(description: Description, entry: str, layers: int) -> tuple[str, str]:
    """A block and its module; `{i}` is the number behind the last layer's."""
    name, _, module = entry.partition("@")
    module = (module or description.draft_module or "").replace("{i}", str(layers))
    if not module:
        raise BadCircuit(
            f"{description.source}: the draft block {name!r} has no module; set draft_module or "
            f"write {name}@module"
        )
    return name, module
