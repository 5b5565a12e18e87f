"""What every buffer of a tried group holds before its kernels run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

import torch

from metpipe.circuit.vocabulary import OPS
from metpipe.engine.microtest.domains import chosen_experts, in_domain
from metpipe.engine.microtest.guarded import fill
from metpipe.engine.microtest.memory import Memory, state_label, tensor_label
from metpipe.engine.microtest.places import Place
from metpipe.engine.microtest.step_layout import StepLayout
from metpipe.engine.microtest.values import Role, Subject, draw

__all__ = ["Start", "starting_values"]

LOWER_BITS = 0x6A35
Start = dict[str, torch.Tensor]
"""label -> contents; a label that is absent is an output: it holds marks that nobody writes."""


class _Target(NamedTuple):
    label: str
    role: Role
    number: int
    """among those of its role"""


def starting_values(
    place: Place, layout: StepLayout, kind: str, seed: int, *, own: Memory, shared: Memory
) -> Start:
    """Values of a kind for inputs, weights and pools; what is in `shared` otherwise is kept."""
    start = {
        target.label: _drawn(place, kind, seed, target, {**own, **shared}[target.label].tensor)
        for target in _targets(place)
    }
    for state in place.states:
        start[state_label(state)] = _pool(place, layout, state, start[state_label(state)])
    kept = {label: held.tensor.clone() for label, held in shared.items() if label not in start}
    return start | kept


def _targets(place: Place) -> Iterator[_Target]:
    """Everything to be drawn, numbered among those of its role."""
    applies_matrix = {node.id: OPS[node.op].weight == "matrix" for node in place.nodes}
    numbers = dict.fromkeys(("operand", "stream", "matrix", "vector", "state"), -1)

    def target(label: str, role: Role) -> _Target:
        numbers[role] += 1
        return _Target(label, role, numbers[role])

    for edge in place.inputs:
        readers = [node for node in place.nodes if edge in node.inputs]
        is_operand = any(applies_matrix[node.id] for node in readers)
        yield target(edge, "operand" if is_operand else "stream")
    for node in place.nodes:
        if node.binding:
            yield target(
                f"weight of {node.id}", "vector" if OPS[node.op].weight == "vector" else "matrix"
            )
        if node.has_bias:
            yield _Target(f"bias of {node.id}", "bias", numbers["matrix"])
        for tensor in node.tensors:
            role: Role = "vector" if len(tensor.shape) == 1 else "matrix"
            yield target(tensor_label(tensor.name), role)
    for state in place.states:
        yield target(state_label(state), "state")


def _drawn(
    place: Place, kind: str, seed: int, target: _Target, tensor: torch.Tensor
) -> torch.Tensor:
    named = f"{seed} {kind} {target.label} {place.text}"
    source = zlib.crc32(named.encode())
    if not tensor.is_floating_point():
        return chosen_experts(place, tensor, torch.Generator().manual_seed(source))
    row = tensor.shape[-1]
    beside_matrix = any(OPS[node.op].weight == "matrix" for node in place.nodes)
    subject = Subject(target.role, (tensor.numel() // row, row), target.number, beside_matrix)
    values = draw(kind, subject, source).view(tensor.shape)
    wide = _widened(values) if tensor.dtype == torch.float32 else values
    return in_domain(place, target.label, wide)


def _widened(values: torch.Tensor) -> torch.Tensor:
    """float32 of bf16 values, with lower bits that no bf16 has.

    They are the same everywhere, so that what is equal or opposite stays so. Zeros, infinities and
    NaN are as they were.
    """
    wide = values.float()
    is_plain = values.isfinite() & (values != 0)
    bits = wide.view(torch.int32)
    bits[is_plain] |= LOWER_BITS
    return wide


def _pool(place: Place, layout: StepLayout, state: str, pool_TE: torch.Tensor) -> torch.Tensor:
    """Committed tokens hold values; so do the step's own, unless the group writes them.

    Of a recurrent state all slots but the dummy hold some.
    """
    held = layout.committed
    if place.circuit.states[state].kind == "recurrent":
        held = torch.arange(layout.num_slots) < layout.num_slots - 1
    elif state not in place.written_states:
        held = held | layout.current
    empty_TE = torch.empty_like(pool_TE)
    fill(empty_TE)
    return torch.where(held[:, None], pool_TE, empty_TE)
