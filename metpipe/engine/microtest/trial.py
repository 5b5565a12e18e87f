"""What one run of both sides left behind: bytes to compare, and what else was touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from metpipe.engine.microtest.guarded import fill, is_fill
from metpipe.engine.microtest.memory import snapshots_label, state_label
from metpipe.engine.microtest.places import Place

__all__ = ["Pair", "Trial", "pair_of"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One output of both sides."""

    label: str
    """an edge or a state"""
    part: str
    """its place in the pattern, so that it means one thing in every circuit"""
    chain: torch.Tensor
    rule: torch.Tensor
    is_exercised: bool
    """whether the chain wrote a finite number other than 0"""
    unwritten: int
    """16-bit words that the chain wrote and the rule did not"""


@dataclass(frozen=True, slots=True)
class Trial:
    """Both sides of a place on one kind of values; the chain's tensors are the bench's."""

    place: Place
    values: str
    pairs: tuple[Pair, ...]
    moved: Mapping[str, int]
    """buffer -> bytes that the rule's kernels changed and may not"""
    unrepeated: tuple[str, ...]
    """outputs that a second launch from the same start gave other bytes"""


def pair_of(
    place: Place,
    label: str,
    chain: torch.Tensor,
    rule: torch.Tensor,
    before: torch.Tensor | None,
) -> Pair:
    """An output's pair; `before`: what a state held, None for an edge."""
    unwritten = 0
    if rule.dtype == chain.dtype and not torch.equal(is_fill(rule), is_fill(chain)):
        unwritten = int((is_fill(rule) & ~is_fill(chain)).sum())
    is_exercised = _is_exercised(chain, before)
    return Pair(label, _part(place, label), chain, rule, is_exercised, unwritten)


def _is_exercised(chain: torch.Tensor, before: torch.Tensor | None) -> bool:
    if before is None:
        before = torch.empty_like(chain)
        fill(before)
    width = torch.int32 if chain.itemsize == 4 else torch.int16
    wrote = chain.view(width) != before.view(width)
    number = wrote & (chain != 0)
    if chain.is_floating_point():
        number &= torch.isfinite(chain)
    return bool(number.any())


def _part(place: Place, label: str) -> str:
    """`output 0 of element 2 (rope)`, or by the state's name in its block."""
    for position, node in enumerate(place.nodes):
        if label in node.outputs:
            return f"output {node.outputs.index(label)} of element {position} ({node.op})"
    names = {state_label(state): f"the state {_local(place, state)}" for state in place.states}
    for state in place.kept_states:
        names[snapshots_label(state)] = f"the snapshots of the state {_local(place, state)}"
    return names[label]


def _local(place: Place, state: str) -> str:
    return place.circuit.states[state].local
