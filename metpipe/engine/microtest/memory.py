"""The buffers of a tried group, by label: what each side has of its own, and what both only read.

Labels: an edge's id, `state ID`, `snapshots ID`, `weight of NODE`, `bias of NODE`, `cos of NODE`,
`tensor NAME`, `step.NAME`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import torch

from metpipe.circuit import Node, Plan
from metpipe.engine.kernel_arguments import ArgumentSources
from metpipe.engine.microtest.guarded import Guarded
from metpipe.engine.microtest.places import Place
from metpipe.engine.microtest.step_layout import StepLayout
from metpipe.engine.program import DTYPES
from metpipe.engine.rope_tables import rope_spec, rope_tables
from metpipe.engine.weights import Weights, bound_tensors

__all__ = [
    "Memory",
    "argument_sources",
    "shared_memory",
    "side_memory",
    "snapshots_label",
    "state_label",
    "tensor_label",
]

Memory = Mapping[str, Guarded]


def state_label(state_id: str) -> str:
    """A state's label: edges may have the same id."""
    return f"state {state_id}"


def snapshots_label(state_id: str) -> str:
    """The label of what rows leave behind of a state."""
    return f"snapshots {state_id}"


def tensor_label(name: str) -> str:
    """The label of a small tensor of the checkpoint."""
    return f"tensor {name}"


def side_memory(
    place: Place, plan: Plan, layout: StepLayout, device: torch.device
) -> dict[str, Guarded]:
    """One side's edges, as many as its plan stores, and its pools."""
    circuit = place.circuit
    made = [edge for node in place.nodes for edge in node.outputs if edge in plan.materialized]
    memory = {
        edge: Guarded.allocate(
            (place.rows_of(edge), circuit.edges[edge].dim), DTYPES[plan.stored[edge]], device
        )
        for edge in (*place.inputs, *made)
    }
    pool_rows = layout.num_blocks * layout.block_size
    for state in place.states:
        elements = circuit.states[state].elements
        if circuit.states[state].kind == "recurrent":
            pool = Guarded.allocate((layout.num_slots, elements), torch.float32, device)
        else:
            pool = Guarded.allocate((pool_rows, elements), torch.bfloat16, device)
        memory[state_label(state)] = pool
    for state in place.kept_states:
        shape = (layout.num_snapshots, circuit.states[state].elements)
        memory[snapshots_label(state)] = Guarded.allocate(shape, torch.float32, device)
    return memory


def shared_memory(
    place: Place, layout: StepLayout, device: torch.device
) -> Iterator[tuple[str, Guarded]]:
    """Weights, rope tables and the step's inputs; the weights are not filled yet."""
    for name, tensor in layout.tensors.items():
        yield f"step.{name}", _guarded_copy(tensor, device)
    for node in place.nodes:
        yield from _weights(place, node, device)
        if "rope" in node.params:
            spec = rope_spec(json.loads(node.params["rope"]), int(node.params["rotary_dim"]))
            tables = rope_tables(spec, layout.max_position + 2)
            for label, table in zip(("cos", "sin"), tables, strict=True):
                yield f"{label} of {node.id}", _guarded_copy(torch.from_numpy(table), device)


def argument_sources(
    place: Place, layout: StepLayout, own: Memory, shared: Memory
) -> ArgumentSources:
    """What a rule's args may name, in these buffers."""
    bound = [node for node in place.nodes if node.binding]
    small = [tensor.name for node in place.nodes for tensor in node.tensors]
    step = {name: shared[f"step.{name}"].tensor for name in layout.tensors}
    return ArgumentSources(
        circuit=place.circuit,
        weights=Weights(
            {node.binding: shared[f"weight of {node.id}"].tensor for node in bound},
            {node.binding: shared[f"bias of {node.id}"].tensor for node in bound if node.has_bias},
            {name: shared[tensor_label(name)].tensor for name in small},
        ),
        edges={label: buffer.tensor for label, buffer in own.items()},
        states={state: own[state_label(state)].tensor for state in place.states},
        rope=lambda node: (shared[f"cos of {node.id}"].tensor, shared[f"sin of {node.id}"].tensor),
        step={**step, "block_size": layout.block_size},
        rows_of=place.rows_of,
        snapshots={state: own[snapshots_label(state)].tensor for state in place.kept_states},
    )


def _weights(place: Place, node: Node, device: torch.device) -> Iterator[tuple[str, Guarded]]:
    """The rows of all bound modules, one after another, as the engine stacks them."""
    found = bound_tensors(place.circuit, node)
    if found.weight:
        weight = Guarded.allocate(found.weight_shape, torch.bfloat16, device)
        yield f"weight of {node.id}", weight
    if found.bias:
        yield f"bias of {node.id}", Guarded.allocate(found.bias_shape, torch.bfloat16, device)
    for name, shape in found.small.items():
        yield tensor_label(name), Guarded.allocate(shape, torch.bfloat16, device)


def _guarded_copy(tensor: torch.Tensor, device: torch.device) -> Guarded:
    buffer = Guarded.allocate(tuple(tensor.shape), tensor.dtype, device)
    buffer.tensor.copy_(tensor)
    return buffer
