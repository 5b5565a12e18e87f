"""The ten kinds of caches beside the states: what a model declares, and how many units there are.

(section 12.) Bytes = units x elements x element size, except the index of prompt lookup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from metpipe.circuit import Circuit, StateDecl, element_bytes
from metpipe.memory.met.lookup_index import lookup_bytes
from metpipe.memory.met.shape import SSM_FORMAT, ModelShape
from metpipe.memory.report import StateBytes

__all__ = ["KINDS", "Cache", "CacheUnits", "cache_rows", "declared_caches"]

KINDS = (
    "prefix_snapshot",
    "ring_snapshot",
    "carry_stash",
    "carry_table",
    "verify_table",
    "accept_stash",
    "hidden_capture",
    "prompt_lookup_index",
    "token_tree_mask",
    "draft_tokens",
)
HOST = "prompt_lookup_index"
"""The one that lies in the host's memory."""
CARRY_ROWS = 8
"""Rows of a verify that the carry keeps."""
VERIFY_TABLES = 16
"""Tables of a delta net's verify, a pointer each."""
F32_SNAPSHOT = "f32"
"""Snapshots are in f32 whatever the pool stores."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of a model: `elements` per unit, one for each of `states` (one a layer)."""

    local: str
    kind: str
    elements: int
    dtype: str
    states: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheUnits:
    """What the units of each kind follow from.

    `history` are the tokens of each sequence's lookup index; None: no index.
    """

    prefix_slots: int = 0
    ring_depth: int = 0
    slots: int = 0
    carry_slots: int = 0
    carry_rows: int = 0
    verify_rows: int = 0
    capture_rows: int = 0
    sequences: int = 0
    history: int | None = None
    tree_nodes: int | None = None

    def by_kind(self) -> Mapping[str, int]:
        """Kind -> units; what is absent has none."""
        nodes = self.tree_nodes or 0
        return {
            "prefix_snapshot": self.prefix_slots,
            "ring_snapshot": self.ring_depth * self.slots,
            "carry_stash": self.carry_slots,
            "carry_table": self.carry_rows,
            "verify_table": self.verify_rows,
            "accept_stash": self.verify_rows,
            "hidden_capture": self.capture_rows,
            "prompt_lookup_index": self.sequences * (self.history or 0),
            "token_tree_mask": self.sequences * nodes * nodes,
            "draft_tokens": self.sequences * nodes,
        }


def declared_caches(circuit: Circuit, shape: ModelShape) -> tuple[Cache, ...]:
    """Every cache that a model of this circuit may have.

    Snapshots follow from the states of state space layers, the carry and the verify's tables from
    delta nets, what is kept of hidden rows from a draft head.
    """
    layers = {_block(state) for state in circuit.states.values() if state.format == SSM_FORMAT}
    recurrent = [state for state in circuit.states.values() if _block(state) in layers]
    nets = tuple(_block(state) for state in recurrent if state.local == "gdn.h")
    return (
        *_snapshots(recurrent, shape),
        *(_carry(nets, shape) if nets else ()),
        *(_hidden(shape) if any(node.section == "draft" for node in circuit.nodes) else ()),
        Cache("head.prompt_lookup", HOST, 2, "u64", ("head.prompt_lookup",)),
        Cache("head.tree_mask", "token_tree_mask", 1, "u8", ("head.tree_mask",)),
        Cache("head.draft_tokens", "draft_tokens", 1, "i32", ("head.draft_tokens",)),
    )


def cache_rows(caches: tuple[Cache, ...], units: CacheUnits) -> Iterator[StateBytes]:
    """A row per cache, also of those without units."""
    by_kind = units.by_kind()
    for cache in caches:
        count, unit = by_kind[cache.kind], cache.elements * element_bytes(cache.dtype)
        size = len(cache.states) * count * unit
        if cache.kind == HOST:
            size = units.sequences * lookup_bytes(units.history or 0)
        yield StateBytes(
            local=cache.local,
            kind=cache.kind,
            holding="host" if cache.kind == HOST else "cache",
            lifetime="model",
            dtype=cache.dtype,
            section="main",
            states=cache.states,
            units=count,
            unit_bytes=unit,
            bytes=size,
        )


def _snapshots(recurrent: list[StateDecl], shape: ModelShape) -> Iterator[Cache]:
    """Of each recurrent state, for the prefix cache and for the decode ring."""
    groups: dict[tuple[str, int], list[str]] = {}
    for state in recurrent:
        groups.setdefault((state.local, state.elements), []).append(state.id)
    for kind, prefix in (("prefix_snapshot", "prefix"), ("ring_snapshot", "ring")):
        for (local, elements), ids in groups.items():
            states = tuple(_renamed(state_id, prefix) for state_id in ids)
            yield Cache(_renamed(local, prefix), kind, elements, F32_SNAPSHOT, states)
    if groups:
        yield _of_head("prefix_hidden", "prefix_snapshot", shape.hidden, "bf16")


def _carry(nets: tuple[str, ...], shape: ModelShape) -> Iterator[Cache]:
    """Of each delta net: values, gates and keys of the carried rows, and the tables' pointers."""
    keys = shape.lin_v_heads * shape.lin_k_dim
    rows = CARRY_ROWS * (shape.lin_values + shape.lin_v_heads + keys)
    kinds = (
        ("carry_vgs", "carry_stash", rows, "f32"),
        ("carry_conv", "carry_stash", CARRY_ROWS * shape.conv, "bf16"),
        ("carry_pend", "carry_stash", 1, "u32"),
        ("carry_ptrs", "carry_table", 3, "u64"),
        ("carry_flags", "carry_table", 1, "u32"),
        ("verify_wy", "verify_table", VERIFY_TABLES, "u64"),
    )
    for name, kind, elements, dtype in kinds:
        states = tuple(f"{net}.{name}" for net in nets)
        yield Cache(f"gdn.{name}", kind, elements, dtype, states)
    yield _of_head("carry_slots", "carry_table", 2, "u32")


def _hidden(shape: ModelShape) -> Iterator[Cache]:
    yield _of_head("accept_hidden", "accept_stash", shape.hidden, "bf16")
    yield _of_head("capture_hidden", "hidden_capture", shape.hidden, "bf16")


def _of_head(name: str, kind: str, elements: int, dtype: str) -> Cache:
    return Cache(f"head.{name}", kind, elements, dtype, (f"head.{name}",))


def _block(state: StateDecl) -> str:
    """`l3.gdn.h` -> `l3.gdn`."""
    return state.id.rpartition(".")[0]


def _renamed(state: str, prefix: str) -> str:
    """`l3.gdn.h` -> `l3.gdn.prefix_h`."""
    block, _, name = state.rpartition(".")
    return f"{block}.{prefix}_{name}"
