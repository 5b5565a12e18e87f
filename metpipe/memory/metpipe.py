"""The `metpipe` accounting: what this engine allocates for a serve, term by term.

Every term is one allocation or a set of equal ones. Each formula is held to the engine's own
allocations by the ledger, to the byte; `own_terms` says where that does not reach. Bytes of a
checkpoint that no node binds are never loaded, never counted.
"""

from __future__ import annotations

from metpipe.circuit import padded_rows
from metpipe.memory import formulas
from metpipe.memory.overheads import collectives_term, graphs_term
from metpipe.memory.own_terms import (
    arena_term,
    rank_term,
    state_term,
    step_term,
    tables_term,
    weights_term,
    workspace_term,
)
from metpipe.memory.planned import StateGroup
from metpipe.memory.point import Point
from metpipe.memory.report import Counts, RunBytes, StateBytes, Term
from metpipe.memory.speculation import depth_notes, draft_rows, snapshot_rows, speculative_runs
from metpipe.memory.spill import spill_records
from metpipe.memory.workspaces import workspaces_of

__all__ = ["count"]


def count(point: Point) -> Counts:
    """Everything but the driver, at one point.

    Raises:
        ConfigError: a dtype without an element size, a block of no tokens, a workspace expression
            that names what the point does not know.
    """
    runs = runs_of(point)
    drafted = draft_rows((run.mode, run.rows) for run in runs)
    states = tuple(
        _state(point, group) for group in point.planned.states if group.section == "main" or drafted
    )
    workspaces = workspaces_of(point, ((run.label, run.mode, run.rows) for run in runs))
    kv = state_term("kv", (state for state in states if state.holding == "blocks"))
    own = (
        weights_term(point),
        kv,
        state_term("states", (state for state in states if state.holding == "live")),
        arena_term(point, runs),
        workspace_term(point, workspaces),
        tables_term(point),
        step_term(point, runs, drafted),
    )
    records = spill_records(point, states)
    return Counts(
        terms=(*_as_held(point, own), graphs_term(point), *_collectives(point)),
        nodes=point.planned.nodes,
        states=(*states, *records),
        runs=runs,
        workspaces=workspaces,
        kv_blocks=num_kv_blocks(point) if kv.low else 0,
        pool_bytes=kv.low,
        notes=(
            "outside bytes not counted: this engine loads bound tensors only",
            *depth_notes(point),
        ),
        host=sum(record.bytes for record in records),
    )


def _as_held(point: Point, terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """The terms as one rank of several has them, where there are several."""
    return terms if point.parallel is None else tuple(map(rank_term, terms))


def _collectives(point: Point) -> tuple[Term, ...]:
    term = collectives_term(point)
    return () if term is None else (term,)


def num_kv_blocks(point: Point) -> int:
    """Blocks of the paged pool: the boot's own where one is checked, else the workload's demand."""
    if point.boot is not None:
        return point.boot.kv_blocks
    return formulas.kv_blocks(point.workload.concurrency, point.num_tokens, point.serve.block_size)


def runs_of(point: Point) -> tuple[RunBytes, ...]:
    """The programs that the serve needs at this load: its decode step and its widest prefill."""
    if point.boot is not None:
        return tuple(_run(point, f"{mode} {rows}", mode, rows) for mode, rows in point.boot.runs)
    rows = padded_rows(point.workload.concurrency)
    prefill = formulas.prefill_rows(point.workload.isl, point.serve.max_prefill_tokens)
    return (
        _run(point, "decode", "decode" if rows == 1 else "multi_seq", rows),
        _run(point, "prefill", "prefill", prefill),
        *(_run(point, mode, mode, rows) for mode, rows in speculative_runs(point)),
    )


def _run(point: Point, label: str, mode: str, rows: int) -> RunBytes:
    sizes = point.planned.sizes(mode, rows)
    return RunBytes(label, mode, rows, *sizes.arena(rows), uncovered=sizes.uncovered)


def _state(point: Point, group: StateGroup) -> StateBytes:
    """Paged states hold a block pool, recurrent ones a slot per sequence, a dummy and snapshots.

    Other kinds (caches) are not held by this engine: a circuit that declares one holds 0 units.
    """
    dtype, size = _dtype(point, group)
    layers, unit = len(group.states), group.elements * size
    match group.kind:
        case "paged_kv":
            blocks, block = num_kv_blocks(point), point.serve.block_size
            units, pool = blocks * block, formulas.kv_bytes(blocks, block, group.elements, size)
        case "recurrent":
            slots = point.num_slots if point.boot is None else point.boot.slots
            kept = snapshot_rows(point) if group.section == "main" else 0
            units = slots + 1 + kept
            pool = formulas.recurrent_bytes(slots, group.elements, size) + kept * unit
        case _:
            units, pool = 0, 0
    return StateBytes(
        local=group.local,
        kind=group.kind,
        holding="blocks" if group.kind == "paged_kv" else "live",
        lifetime=group.lifetime,
        dtype=dtype,
        section=group.section,
        states=group.states,
        units=units,
        unit_bytes=unit,
        bytes=layers * pool,
    )


def _dtype(point: Point, group: StateGroup) -> tuple[str, int]:
    """A state's dtype, its `{key}` replaced by the serve flag, and the bytes of an element."""
    match group.format:
        case "{kv_cache_dtype}":
            dtype = point.serve.kv_cache_dtype
            return dtype, formulas.element_bytes(dtype, f"serve.kv_cache_dtype={dtype}")
        case "{ssm_h_storage}":
            dtype = "f16" if point.serve.ssm_h_dtype == "f16-pool" else point.serve.ssm_h_dtype
            return dtype, formulas.element_bytes(dtype, f"serve.ssm_h_dtype={dtype}")
    return group.format, formulas.element_bytes(group.format, group.local)
