"""The legacy arena as a range, for families with parts that no formula speaks of.

Its lower end are the buffers that have a formula. Its upper end is a buffer of four bytes an
element for every result of every kind of layer, beside logits, scratch, split keys and a delta
net's chunks: the forward by hand has one set of buffers for all layers, and none is wider than what
it holds. For each family that has a formula this lies above the formula's sum, with what the delta
nets' prefill takes beside it (tests/memory/met/test_arena_range.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from metpipe.circuit import Circuit, Edge
from metpipe.circuit.rows import count_rows
from metpipe.memory.met.legacy_arena import ArenaSizes, arena_buffers, arena_bytes
from metpipe.memory.met.shape import ModelShape, gaps_of

__all__ = ["Gaps", "arena_range", "find_gaps", "gaps_as"]

ELEMENT = 4
"""No result is wider than f32."""
BESIDE = ("logits", "scratch", "split_k", "gdn_chunks")
"""Buffers of the formula that other things than a step's results size."""
ATTENTION = ("mla_attention", "compressed_attention", "paged_attention")


@dataclass(frozen=True, slots=True, eq=False)
class Gaps:
    """What no formula speaks of, and what bounds its buffers.

    `results` maps an expression of rows to an edge that has it and to the width of all results with
    such rows, each kind of layer once. `wide` is the shape at its widest: of what a head sums up,
    and with delta nets of another name.
    """

    circuit: Circuit
    what: tuple[str, ...]
    results: Mapping[str, tuple[Edge, int]]
    wide: ModelShape


def find_gaps(circuit: Circuit, shape: ModelShape) -> Gaps | None:
    """A circuit's gaps; None where every part has a formula."""
    what = gaps_of(circuit)
    return gaps_as(circuit, shape, what) if what else None


def gaps_as(circuit: Circuit, shape: ModelShape, what: tuple[str, ...]) -> Gaps:
    """The bound of a circuit, whatever has a formula."""
    once: dict[tuple[str, str], Edge] = {}
    for node in circuit.nodes:
        for edge_id in node.outputs:
            once.setdefault((node.block, edge_id.rpartition(".")[2]), circuit.edges[edge_id])
    results: dict[str, tuple[Edge, int]] = {}
    for edge in once.values():
        results[edge.rows] = (edge, results.get(edge.rows, (edge, 0))[1] + edge.dim)
    return Gaps(circuit, what, results, _wide(circuit, shape))


def arena_range(shape: ModelShape, gaps: Gaps, sizes: ArenaSizes) -> tuple[int, int]:
    """Bytes of the arena at least and at most."""
    wide = arena_buffers(gaps.wide, sizes)
    widths = (
        count_rows(gaps.circuit, edge, sizes.padded, "prefill") * width
        for edge, width in gaps.results.values()
    )
    most = ELEMENT * sum(widths) + sum(wide[name] for name in BESIDE)
    return arena_bytes(shape, sizes), most


def _wide(circuit: Circuit, shape: ModelShape) -> ModelShape:
    dims = circuit.dims
    written = (circuit.edges[node.outputs[0]].dim for node in circuit.nodes if node.op in ATTENTION)
    head_dim = max(-(-max(written, default=0) // shape.q_heads), dims.get("kv_lora", 0))
    wide = replace(shape, head_dim=head_dim)
    if "kda_heads" not in dims:
        return wide
    dim = dims["kda_dim"]
    return replace(wide, lin_v_heads=dims["kda_heads"], lin_k_dim=dim, lin_v_dim=dim)
