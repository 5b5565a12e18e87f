"""The circuit: a model as a graph of typed ops. `instantiate` makes it, `verify` checks it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metpipe.circuit.blueprint import Blueprint

__all__ = ["BlockInstance", "BoundTensor", "Circuit", "Edge", "Node", "StateDecl"]


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor [rows, dim] that one node writes and others read."""

    id: str
    """`l3.attn.q`"""
    format: str
    rows: str
    """over `n` (tokens of the step) and `s` (sequences): `n`, `s`, `n*top_k`"""
    dim_expr: str
    dim: int
    producer: int | None
    consumers: tuple[int, ...]
    is_output: bool
    buffer: str | None
    """the name under which it is read from outside: logits, tokens"""


@dataclass(frozen=True, slots=True)
class BoundTensor:
    """A small tensor of the checkpoint that a node reads beside its weight."""

    local: str
    name: str
    """its whole name in the checkpoint"""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One op. Node order is execution order."""

    index: int
    id: str
    """`l3.attn.q`"""
    local: str
    """`q`"""
    op: str
    role: str | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weight_format: str | None
    """None: reads no weight"""
    binding: tuple[str, ...]
    """checkpoint modules, `.weight` implied; several are concatenated along the output dim"""
    has_bias: bool
    params: Mapping[str, str]
    layer: int | None
    layer_kind: str | None
    block: str
    section: str
    """main or draft"""
    state: Mapping[str, str]
    """state id -> read, write, update or snapshot"""
    binding_rows: tuple[int, ...] = ()
    """output rows of each bound module"""
    tensors: tuple[BoundTensor, ...] = ()
    stacked: str | None = None
    """of an expert op: the tensor [experts, out, k] in which some checkpoints store all modules"""
    is_stacked_transposed: bool = False
    """that tensor is [experts, k, out]"""
    is_bare: bool = False
    """its binding names tensors, not modules with a `.weight`"""
    matrix: tuple[int, int] | None = None
    """(out, k) of its matrix; None: what it writes by what it reads first"""


@dataclass(frozen=True, slots=True)
class StateDecl:
    """What outlives a step: a KV cache side, a recurrent state, a cache."""

    id: str
    """`l3.attn.k`"""
    local: str
    """`attn.k`"""
    kind: str
    lifetime: str
    format: str
    """an element type, or `{key}` to be resolved by whoever plans: `{kv_cache_dtype}`"""
    elements: int
    """per token for paged_kv, per slot for recurrent"""
    shape: tuple[int, ...]
    layer: int | None
    section: str
    verify: str | None = None
    copies: str | None = None
    """of a snapshot kind: the id of the state that it copies"""


@dataclass(frozen=True, slots=True)
class BlockInstance:
    """A block template put at a place; it owns the nodes first..last-1."""

    template: str
    prefix: str
    layer: int | None
    layer_kind: str | None
    section: str
    first: int
    last: int
    stream_in: str | None
    stream_out: str | None


@dataclass(frozen=True, slots=True)
class Circuit:
    """A whole model. The output edge of layer i is the input edge of layer i+1."""

    arch: str
    nodes: tuple[Node, ...]
    edges: Mapping[str, Edge]
    blocks: tuple[BlockInstance, ...]
    layer_kinds: tuple[str, ...]
    dims: Mapping[str, int]
    params: Mapping[str, str]
    """carried from the config as JSON text"""
    states: Mapping[str, StateDecl] = field(default_factory=dict)
    outside: tuple[str, ...] = ()
    """globs over checkpoint tensors that belong to no node by intent: a vision tower"""
    blueprint: Blueprint | None = field(default=None, compare=False, repr=False)
    """what it was instantiated from; None where it was put together by hand"""
