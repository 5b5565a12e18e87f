"""A circuit description as read from TOML: blocks of nodes, and how layers are made of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from metpipe.circuit.dims import Expr

__all__ = [
    "BlockText",
    "Description",
    "LayoutText",
    "NodeText",
    "OutText",
    "PrefixText",
    "StateText",
    "TensorText",
]


@dataclass(frozen=True, slots=True)
class OutText:
    """An edge that a node writes: `rows x dim` in a format."""

    edge: str
    format: str
    rows: Expr
    dim: Expr


@dataclass(frozen=True, slots=True)
class TensorText:
    """A small checkpoint tensor beside the weight, by its whole name."""

    id: str
    tensor: str
    shape: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class NodeText:
    """A node of a block template. Switches are `name` or `!name` over dims."""

    id: str
    op: str
    where: str
    role: str | None
    format: str | None
    """act_quant only: the format it writes"""
    inputs: tuple[str, ...]
    outputs: tuple[OutText, ...]
    binding: tuple[str, ...]
    binding_when: Mapping[str, tuple[str, ...]]
    binding_rows: tuple[Expr, ...]
    """output rows of each bound module; empty: equal shares"""
    bias: str | None
    """switch, `always`, or None"""
    params: Mapping[str, str]
    params_when: Mapping[str, Mapping[str, str]]
    when: str | None
    state: Mapping[str, str]
    unquantized: bool
    tensors: tuple[TensorText, ...]
    stacked: str | None
    """of an expert op: the tensor that may hold all of its modules"""
    is_stacked_transposed: bool
    """that tensor is [experts, k, out], not [experts, out, k]"""
    is_bare: bool
    """the bound names are tensors, not modules with a `.weight`"""
    matrix: tuple[Expr, Expr] | None
    """(out, k) where it is not what the node writes by what it reads first"""


@dataclass(frozen=True, slots=True)
class StateText:
    """A state of a block template."""

    id: str
    kind: str
    lifetime: str
    format: str
    shape: tuple[Expr, ...]
    verify: str | None
    copies: str | None


@dataclass(frozen=True, slots=True)
class BlockText:
    """A block template; `outputs` maps declared output edges to their buffer, if any."""

    name: str
    where: str
    stream_in: str | None
    stream_out: str | None
    outputs: Mapping[str, str | None]
    nodes: tuple[NodeText, ...]
    states: tuple[StateText, ...]


@dataclass(frozen=True, slots=True)
class PrefixText:
    """The first `count` layers (a dim) take other blocks."""

    count: str
    blocks: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class LayoutText:
    """Which blocks a layer of each kind is made of."""

    kind: str
    """interval: layer i is full_attention iff (i+1) mod period == 0; list: the config says"""
    period: int | None
    blocks: Mapping[str, tuple[str, ...]]
    when: Mapping[str, Mapping[str, tuple[str, ...]]]
    """switch -> kinds whose blocks are replaced"""
    prefix: PrefixText | None


@dataclass(frozen=True, slots=True)
class Description:
    """A whole architecture; `source` names its file in messages."""

    arch: str
    source: str
    description: str
    layer_module: str
    dims: tuple[str, ...]
    prologue: tuple[str, ...]
    epilogue: tuple[str, ...]
    layout: LayoutText
    blocks: Mapping[str, BlockText]
    draft: tuple[str, ...] = ()
    """block names, or `template@module`"""
    draft_module: str | None = None
    draft_when: str | None = None
    draft_variant: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    module_root: Mapping[str, str] = field(default_factory=dict)
    """switch (empty: always) -> the checkpoint module that `{M}` stands for"""
    derived: Mapping[str, Expr] = field(default_factory=dict)
    """dims worked out of other dims, in order"""
    outside: tuple[str, ...] = ()
    """globs over checkpoint tensors that no node binds by intent"""

    def blocks_used(self) -> frozenset[str]:
        """Every block name that a layout or a list mentions."""
        layout = self.layout
        kinds = [layout.blocks, *layout.when.values()]
        if layout.prefix is not None:
            kinds.append(layout.prefix.blocks)
        drafts = [self.draft, *self.draft_variant.values()]
        return frozenset(
            [name for blocks in kinds for names in blocks.values() for name in names]
            + [entry.partition("@")[0] for entries in drafts for entry in entries]
            + [*self.prologue, *self.epilogue]
        )
