"""Puts block templates one behind the other: their nodes, edges and states, and the stream."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from metpipe.circuit.description import BlockText, Description, NodeText, OutText, StateText
from metpipe.circuit.dims import holds
from metpipe.circuit.errors import BadCircuit
from metpipe.circuit.ir import BlockInstance, Circuit, Edge, Node, StateDecl
from metpipe.circuit.precision import Precision
from metpipe.circuit.template import (
    Modules,
    Shape,
    node_binding,
    node_binding_rows,
    node_has_bias,
    node_matrix,
    node_params,
    node_stacked,
    node_tensors,
    node_weight_format,
)

__all__ = ["CircuitBuilder", "Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a block template is put."""

    prefix: str
    module: str | None = None
    """what `{L}` stands for; it may itself hold `{M}`"""
    section: str = "main"
    layer: int | None = None
    layer_kind: str | None = None


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
            id=self.id,
            format=self.format,
            rows=self.rows,
            dim_expr=self.dim_expr,
            dim=self.dim,
            producer=self.producer,
            consumers=tuple(self.consumers),
            is_output=self.is_output,
            buffer=self.buffer,
        )


@dataclass(frozen=True, slots=True)
class _OpenBlock:
    """A template being put at a place; `names` maps its local edges to edge ids."""

    text: BlockText
    place: Place
    names: dict[str, str] = field(default_factory=dict)

    def edge_id(self, local: str, where: str) -> str:
        if local not in self.names:
            raise BadCircuit(f"{where}: the edge {local!r} is written by no earlier node of it")
        return self.names[local]

    def name_edge(self, local: str, edge_id: str, where: str) -> None:
        if local in self.names:
            raise BadCircuit(f"{where}: the edge {local!r} is written twice in its block")
        self.names[local] = edge_id


class CircuitBuilder:
    """Collects a circuit block by block; each block reads the stream that the last one left."""

    def __init__(self, description: Description, shape: Shape, precision: Precision) -> None:
        self._description = description
        self._shape = shape
        self._precision = precision
        self._root = _module_root(description, shape)
        self._nodes: list[Node] = []
        self._tables: dict[tuple[str, ...], str] = {}
        self._edges: dict[str, _OpenEdge] = {}
        self._states: dict[str, StateDecl] = {}
        self._blocks: list[BlockInstance] = []
        self._stream: str | None = None

    def add(self, name: str, place: Place) -> None:
        """Put the block template `name` at a place, behind what is there."""
        block = _OpenBlock(self._template(name), place)
        stream_in, first = self._enter(block), len(self._nodes)
        for state in block.text.states:
            self._add_state(state, block)
        for node in block.text.nodes:
            self._add_node(node, block)
        self._blocks.append(
            BlockInstance(
                template=name,
                prefix=place.prefix,
                layer=place.layer,
                layer_kind=place.layer_kind,
                section=place.section,
                first=first,
                last=len(self._nodes),
                stream_in=stream_in,
                stream_out=self._leave(block),
            )
        )

    def circuit(self) -> Circuit:
        """What was built."""
        return Circuit(
            arch=self._description.arch,
            nodes=tuple(self._nodes),
            edges={edge.id: edge.closed() for edge in self._edges.values()},
            blocks=tuple(self._blocks),
            layer_kinds=self._shape.layer_kinds,
            dims={**self._shape.dims, "layers": len(self._shape.layer_kinds)},
            params=dict(self._shape.params),
            states=dict(self._states),
            outside=self._description.outside,
        )

    def _template(self, name: str) -> BlockText:
        blocks = self._description.blocks
        if name not in blocks:
            raise BadCircuit(
                f"{self._description.source}: no block is named {name!r}; there are "
                f"{', '.join(sorted(blocks))}"
            )
        return blocks[name]

    def _enter(self, block: _OpenBlock) -> str | None:
        if block.text.stream_in is None:
            return None
        if self._stream is None:
            raise BadCircuit(f"{block.text.where}: no earlier block wrote a stream for it to read")
        block.names[block.text.stream_in] = self._stream
        return self._stream

    def _leave(self, block: _OpenBlock) -> str | None:
        where = block.text.where
        for local, buffer in block.text.outputs.items():
            edge = self._edges[block.edge_id(local, f"{where}, outputs")]
            edge.is_output, edge.buffer = True, buffer
        if block.text.stream_out is None:
            return None
        self._stream = block.edge_id(block.text.stream_out, f"{where}, stream_out")
        return self._stream

    def _add_state(self, text: StateText, block: _OpenBlock) -> None:
        state_id = f"{block.place.prefix}.{text.id}"
        where = f"{block.text.where}, state {text.id}"
        if state_id in self._states:
            raise BadCircuit(f"{where}: it is declared twice")
        shape = tuple(axis.value(self._shape.dims, where) for axis in text.shape)
        self._states[state_id] = StateDecl(
            id=state_id,
            local=f"{block.text.name}.{text.id}",
            kind=text.kind,
            lifetime=text.lifetime,
            format=text.format,
            elements=math.prod(shape),
            shape=shape,
            layer=block.place.layer,
            section=block.place.section,
            verify=text.verify,
            copies=f"{block.place.prefix}.{text.copies}" if text.copies else None,
        )

    def _add_node(self, text: NodeText, block: _OpenBlock) -> None:
        if text.when is not None:
            is_there = holds(text.when, self._shape.dims, text.where)
            self._check_identity(text, block, is_there)
            if not is_there:
                passed = block.edge_id(text.inputs[0], text.where)
                block.name_edge(text.outputs[0].edge, passed, text.where)
                return
        inputs = tuple(block.edge_id(local, text.where) for local in text.inputs)
        index = len(self._nodes)
        for edge_id in dict.fromkeys(inputs):
            self._edges[edge_id].consumers.append(index)
        outputs = tuple(self._add_edge(out, index, text, block) for out in text.outputs)
        self._nodes.append(self._node(text, block, inputs, outputs))

    def _check_identity(self, text: NodeText, block: _OpenBlock, is_there: bool) -> None:
        """A node with a switch, left out, is the identity: its output is its input edge.

        Where it is there it may change the width.
        """
        if len(text.inputs) != 1 or len(text.outputs) != 1:
            raise BadCircuit(
                f"{text.where}: a node with `when` must read one edge and write one, since it is "
                "left out as the identity"
            )
        edge, out = self._edges[block.edge_id(text.inputs[0], text.where)], text.outputs[0]
        dim = out.dim.value(self._shape.dims, text.where)
        width = dim if is_there else edge.dim
        if (edge.format, width, edge.rows) != (out.format, dim, out.rows.text):
            raise BadCircuit(
                f"{text.where}: left out, it would turn {edge.id} ({edge.rows} x {edge.dim} "
                f"{edge.format}) into {out.rows.text} x {dim} {out.format}"
            )

    def _add_edge(self, out: OutText, producer: int, text: NodeText, block: _OpenBlock) -> str:
        edge_id = f"{block.place.prefix}.{out.edge}"
        block.name_edge(out.edge, edge_id, text.where)
        if edge_id in self._edges:
            raise BadCircuit(f"{text.where}: the edge {edge_id} exists already")
        self._edges[edge_id] = _OpenEdge(
            id=edge_id,
            format=text.format or out.format,
            rows=out.rows.text,
            dim_expr=out.dim.text,
            dim=out.dim.value(self._shape.dims, text.where),
            producer=producer,
        )
        return edge_id

    def _node(
        self, text: NodeText, block: _OpenBlock, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ) -> Node:
        place, shape = block.place, self._shape
        node_id = f"{place.prefix}.{text.id}"
        modules = self._modules(place, text.where)
        binding = node_binding(text, shape, modules)
        matrix = node_matrix(text, shape)
        out = matrix[0] if matrix else sum(self._edges[edge].dim for edge in outputs)
        return Node(
            index=len(self._nodes),
            id=node_id,
            local=text.id,
            op=text.op,
            role=text.role,
            inputs=inputs,
            outputs=outputs,
            weight_format=self._weight_format(text, binding, node_id),
            binding=binding,
            has_bias=node_has_bias(text, shape),
            params=node_params(text, shape),
            layer=place.layer,
            layer_kind=place.layer_kind,
            block=block.text.name,
            section=place.section,
            state={self._state_id(name, text, block): how for name, how in text.state.items()},
            binding_rows=node_binding_rows(text, shape, binding, out),
            tensors=node_tensors(text, shape, modules),
            stacked=node_stacked(text, modules),
            is_stacked_transposed=text.is_stacked_transposed,
            is_bare=text.is_bare,
            matrix=matrix,
        )

    def _weight_format(self, text: NodeText, binding: tuple[str, ...], node_id: str) -> str | None:
        """A head tied to the embedding table has the table's format: no table is quantised."""
        found = self._tables.get(binding) or node_weight_format(
            text, binding, self._precision, node_id
        )
        if text.op == "embed" and found is not None:
            self._tables[binding] = found
        return found

    def _modules(self, place: Place, where: str) -> Modules:
        if place.module is None:
            return Modules(self._root, None)
        return Modules(self._root, Modules(self._root, None).within(place.module, where))

    def _state_id(self, name: str, text: NodeText, block: _OpenBlock) -> str:
        state_id = f"{block.place.prefix}.{name}"
        if state_id not in self._states:
            raise BadCircuit(f"{text.where}: its block declares no state {name!r}")
        return state_id


def _module_root(description: Description, shape: Shape) -> str | None:
    """The module that `{M}` stands for: that of the one switch which holds."""
    where = f"{description.source}, module_root"
    found = [
        module
        for switch, module in description.module_root.items()
        if not switch or holds(switch, shape.dims, where)
    ]
    if len(found) > 1:
        raise BadCircuit(f"{where}: {' and '.join(found)} both hold; their switches must differ")
    return found[0] if found else None
