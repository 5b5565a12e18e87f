"""Makes a circuit from a description and a model's shape: blocks become nodes, edges and states."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit.description import BlockText, Description, NodeText, OutText, StateText
from metpipe.circuit.dims import holds
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.ir import BlockInstance, BoundTensor, Circuit, Edge, Node, StateDecl
from metpipe.circuit.precision import BF16, Precision
from metpipe.circuit.vocabulary import OPS

__all__ = ["Shape", "instantiate"]

PLACEHOLDER = re.compile(r"\{(?:rsqrt\((\w+)\)|(\w+))\}")


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's sizes: the kind of each layer, the dims, and params carried as text."""

    layer_kinds: tuple[str, ...]
    dims: Mapping[str, int]
    params: Mapping[str, str] = field(default_factory=dict)


def instantiate(description: Description, shape: Shape, precision: Precision = BF16) -> Circuit:
    """The circuit of one model. Prefixes are `l{i}.{block}`, `draft.{block}` and `{block}`.

    Raises:
        BadCircuit: a dim is missing, a layer kind has no blocks, an edge is read that no earlier
            node wrote, or a switch, size or name does not resolve.
    """
    _require_dims(description, shape)
    builder = _Builder(description, shape, precision)
    for name in description.prologue:
        builder.add(name, name, None, None, "main", None)
    for layer, kind in enumerate(shape.layer_kinds):
        module = description.layer_module.replace("{i}", str(layer))
        for name in _layer_blocks(description, shape, layer, kind):
            builder.add(name, f"l{layer}.{name}", layer, kind, "main", module)
    for name in description.epilogue:
        builder.add(name, name, None, None, "main", None)
    for name, draft_module in _draft_blocks(description, shape):
        builder.add(name, f"draft.{name}", None, None, "draft", draft_module)
    return builder.circuit()


def _require_dims(description: Description, shape: Shape) -> None:
    missing = [name for name in description.dims if name not in shape.dims]
    if missing:
        raise BadCircuit(f"{description.source}: the model's shape lacks the dim {missing[0]!r}")


def _layer_blocks(description: Description, shape: Shape, layer: int, kind: str) -> tuple[str, ...]:
    layout, where = description.layout, f"{description.source}, layout"
    if layout.kind == "interval":
        assert layout.period is not None
        wanted = "full_attention" if (layer + 1) % layout.period == 0 else "linear_attention"
        if kind != wanted:
            raise BadCircuit(
                f"{where}: layer {layer} is {kind}, and with period {layout.period} it must be "
                f"{wanted}"
            )
    blocks: dict[str, tuple[str, ...]] = dict(layout.blocks)
    prefix = layout.prefix
    if prefix is not None and layer < shape.dims.get(prefix.count, 0):
        blocks = dict(prefix.blocks)
    for switch, replaced in layout.when.items():
        if holds(switch, shape.dims, where):
            blocks.update(replaced)
    if kind not in blocks:
        raise BadCircuit(f"{where}: layer {layer} is {kind}, and that kind has no blocks")
    return blocks[kind]


def _draft_blocks(description: Description, shape: Shape) -> list[tuple[str, str]]:
    where = f"{description.source}, draft"
    if description.draft_when and not holds(description.draft_when, shape.dims, where):
        return []
    listed = description.draft
    for switch, replacement in description.draft_variant.items():
        if holds(switch, shape.dims, where):
            listed = replacement
    return [_draft_block(description, entry) for entry in listed]


def _draft_block(description: Description, entry: str) -> tuple[str, str]:
    name, _, module = entry.partition("@")
    module = module or (description.draft_module or "")
    if not module:
        raise BadCircuit(
            f"{description.source}: the draft block {name!r} has no module; set draft_module or "
            f"write {name}@module"
        )
    return name, module


@dataclass(slots=True)
class _OpenEdge:
    """An edge while its readers are still being found."""

    id: str
    format: str
    rows: str
    dim_expr: str
    dim: int
    producer: int
    consumers: list[int] = field(default_factory=list)
    is_output: bool = False
    buffer: str | None = None

    def closed(self) -> Edge:
        return Edge(
            self.id,
            self.format,
            self.rows,
            self.dim_expr,
            self.dim,
            self.producer,
            tuple(self.consumers),
            self.is_output,
            self.buffer,
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a block template is being put."""

    block: BlockText
    prefix: str
    layer: int | None
    kind: str | None
    section: str
    module: str | None
    names: dict[str, str]
    """local edge -> edge id"""


class _Builder:
    def __init__(self, description: Description, shape: Shape, precision: Precision) -> None:
        self.description = description
        self.shape = shape
        self.precision = precision
        self.nodes: list[Node] = []
        self.edges: dict[str, _OpenEdge] = {}
        self.states: dict[str, StateDecl] = {}
        self.blocks: list[BlockInstance] = []
        self.stream: str | None = None

    def add(
        self,
        name: str,
        prefix: str,
        layer: int | None,
        kind: str | None,
        section: str,
        module: str | None,
    ) -> None:
        """Put the block template `name` behind what is there."""
        block = self._template(name)
        place = _Place(block, prefix, layer, kind, section, module, {})
        if block.stream_in is not None:
            if self.stream is None:
                raise BadCircuit(f"{block.where}: no earlier block wrote a stream for it to read")
            place.names[block.stream_in] = self.stream
        first, stream_in = len(self.nodes), self.stream if block.stream_in else None
        for state in block.states:
            self._add_state(state, place)
        for node in block.nodes:
            self._add_node(node, place)
        self._close_block(place)
        last, stream_out = len(self.nodes), self.stream if block.stream_out else None
        self.blocks.append(
            BlockInstance(name, prefix, layer, kind, section, first, last, stream_in, stream_out)
        )

    def circuit(self) -> Circuit:
        """What was built."""
        return Circuit(
            arch=self.description.arch,
            nodes=tuple(self.nodes),
            edges={edge.id: edge.closed() for edge in self.edges.values()},
            blocks=tuple(self.blocks),
            layer_kinds=self.shape.layer_kinds,
            dims={**self.shape.dims, "layers": len(self.shape.layer_kinds)},
            params=dict(self.shape.params),
            states=self.states,
        )

    def _template(self, name: str) -> BlockText:
        if name not in self.description.blocks:
            raise BadCircuit(
                f"{self.description.source}: no block is named {name!r}; there are "
                f"{', '.join(sorted(self.description.blocks))}"
            )
        return self.description.blocks[name]

    def _close_block(self, place: _Place) -> None:
        for local, buffer in place.block.outputs.items():
            edge = self.edges[self._edge_id(local, place, f"{place.block.where}, outputs")]
            edge.is_output, edge.buffer = True, buffer
        if place.block.stream_out is not None:
            self.stream = self._edge_id(place.block.stream_out, place, place.block.where)

    def _edge_id(self, local: str, place: _Place, where: str) -> str:
        if local not in place.names:
            raise BadCircuit(f"{where}: the edge {local!r} is written by no earlier node of it")
        return place.names[local]

    def _add_state(self, text: StateText, place: _Place) -> None:
        local = f"{place.block.name}.{text.id}"
        state_id = f"{place.prefix}.{text.id}"
        if state_id in self.states:
            raise BadCircuit(f"{place.block.where}: the state {text.id!r} is declared twice")
        where = f"{place.block.where}, state {text.id}"
        shape = tuple(axis.value(self.shape.dims, where) for axis in text.shape)
        copies = f"{place.prefix}.{text.copies}" if text.copies else None
        self.states[state_id] = StateDecl(
            id=state_id,
            local=local,
            kind=text.kind,
            lifetime=text.lifetime,
            format=text.format,
            elements=math.prod(shape),
            shape=shape,
            layer=place.layer,
            section=place.section,
            verify=text.verify,
            copies=copies,
        )

    def _add_node(self, text: NodeText, place: _Place) -> None:
        if text.when is not None and not holds(text.when, self.shape.dims, text.where):
            self._pass_through(text, place)
            return
        inputs = tuple(self._edge_id(local, place, text.where) for local in text.inputs)
        index = len(self.nodes)
        for edge_id in inputs:
            self.edges[edge_id].consumers.append(index)
        outputs = tuple(self._add_edge(out, index, text, place) for out in text.outputs)
        self.nodes.append(self._node(text, place, index, inputs, outputs))

    def _pass_through(self, text: NodeText, place: _Place) -> None:
        """An absent node is the identity: its output's name becomes its input edge."""
        if len(text.inputs) != 1 or len(text.outputs) != 1:
            raise BadCircuit(
                f"{text.where}: a node with `when` must read one edge and write one, since it is "
                "left out as the identity"
            )
        edge = self.edges[self._edge_id(text.inputs[0], place, text.where)]
        out = text.outputs[0]
        dim = out.dim.value(self.shape.dims, text.where)
        if (edge.format, edge.dim, edge.rows) != (out.format, dim, out.rows.text):
            raise BadCircuit(
                f"{text.where}: left out, it would turn {edge.id} ({edge.rows} x {edge.dim} "
                f"{edge.format}) into {out.rows.text} x {dim} {out.format}"
            )
        self._name_edge(out.edge, edge.id, text, place)

    def _name_edge(self, local: str, edge_id: str, text: NodeText, place: _Place) -> None:
        if local in place.names:
            raise BadCircuit(f"{text.where}: the edge {local!r} is written twice in its block")
        place.names[local] = edge_id

    def _add_edge(self, out: OutText, producer: int, text: NodeText, place: _Place) -> str:
        edge_id = f"{place.prefix}.{out.edge}"
        self._name_edge(out.edge, edge_id, text, place)
        if edge_id in self.edges:
            raise BadCircuit(f"{text.where}: the edge {edge_id} exists already")
        dim = out.dim.value(self.shape.dims, text.where)
        fmt = text.format or out.format
        self.edges[edge_id] = _OpenEdge(edge_id, fmt, out.rows.text, out.dim.text, dim, producer)
        return edge_id

    def _node(
        self,
        text: NodeText,
        place: _Place,
        index: int,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
    ) -> Node:
        binding = self._binding(text, place)
        return Node(
            index=index,
            id=f"{place.prefix}.{text.id}",
            local=text.id,
            op=text.op,
            role=text.role,
            inputs=inputs,
            outputs=outputs,
            weight_format=self._weight_format(text, binding, f"{place.prefix}.{text.id}"),
            binding=binding,
            has_bias=self._has_bias(text),
            params=self._params(text),
            layer=place.layer,
            layer_kind=place.kind,
            block=place.block.name,
            section=place.section,
            state={self._state_id(name, text, place): how for name, how in text.state.items()},
            binding_rows=self._binding_rows(text, binding, outputs),
            tensors=tuple(
                BoundTensor(
                    tensor.id,
                    self._module(tensor.tensor, text, place),
                    tuple(axis.value(self.shape.dims, text.where) for axis in tensor.shape),
                )
                for tensor in text.tensors
            ),
        )

    def _binding(self, text: NodeText, place: _Place) -> tuple[str, ...]:
        modules = text.binding
        for switch, replacement in text.binding_when.items():
            if holds(switch, self.shape.dims, text.where):
                modules = replacement
        return tuple(self._module(module, text, place) for module in modules)

    def _module(self, pattern: str, text: NodeText, place: _Place) -> str:
        if "{L}" not in pattern:
            return pattern
        if place.module is None:
            raise BadCircuit(f"{text.where}: {pattern!r} needs a layer's module, and it is in none")
        return pattern.replace("{L}", place.module)

    def _weight_format(self, text: NodeText, binding: tuple[str, ...], node_id: str) -> str | None:
        if not binding:
            return None
        op = OPS.get(text.op)
        if text.unquantized or op is None or op.weight != "matrix":
            return "bf16"
        return self.precision.weight_format(binding, node_id)

    def _binding_rows(
        self, text: NodeText, binding: tuple[str, ...], outputs: tuple[str, ...]
    ) -> tuple[int, ...]:
        if not binding:
            return ()
        if text.binding_rows:
            return tuple(rows.value(self.shape.dims, text.where) for rows in text.binding_rows)
        out = sum(self.edges[edge].dim for edge in outputs)
        if out % len(binding):
            raise BadCircuit(
                f"{text.where}: {out} rows are no equal shares of {len(binding)} modules; state "
                "binding_rows"
            )
        return (out // len(binding),) * len(binding)

    def _has_bias(self, text: NodeText) -> bool:
        if text.bias in (None, "always"):
            return text.bias is not None
        assert text.bias is not None
        return holds(text.bias, self.shape.dims, text.where)

    def _params(self, text: NodeText) -> dict[str, str]:
        params = dict(text.params)
        for switch, replaced in text.params_when.items():
            if holds(switch, self.shape.dims, text.where):
                params.update(replaced)
        return {name: self._fill(value, text) for name, value in params.items()}

    def _fill(self, value: str, text: NodeText) -> str:
        """Replace `{dim}`, `{param}` and `{rsqrt(dim)}` (= dim ** -0.5)."""

        def replace(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if match[1] and name in self.shape.dims:
                return repr(1.0 / math.sqrt(self.shape.dims[name]))
            if name in self.shape.dims:
                return str(self.shape.dims[name])
            if name in self.shape.params:
                return self.shape.params[name]
            raise BadCircuit(
                f"{text.where}: the param {value!r} names {name!r}, which no dim or param is"
            )

        return PLACEHOLDER.sub(replace, value)

    def _state_id(self, name: str, text: NodeText, place: _Place) -> str:
        state_id = f"{place.prefix}.{name}"
        if state_id not in self.states:
            raise BadCircuit(f"{text.where}: its block declares no state {name!r}")
        return state_id
