"""The `metpipe` accounting: what this engine allocates for a serve, term by term.

Every term is one allocation or a set of equal ones. Each formula is held to the engine's own
allocations by the ledger, to the byte, so all are `exact`. Bytes of a checkpoint that no node binds
are never loaded, never counted.
"""

from __future__ import annotations

from metpipe.circuit import padded_rows
from metpipe.memory import formulas
from metpipe.memory.planned import StateGroup
from metpipe.memory.point import Point
from metpipe.memory.report import Counts, RunBytes, StateBytes, Term
from metpipe.memory.speculation import draft_rows, snapshot_rows, speculative_runs
from metpipe.memory.workspaces import workspaces_of

__all__ = ["count"]

BF16_BYTES = 2

SOURCES = {
    "weights": "bound tensors in bf16, each binding once: 2 x the product of its shape",
    "kv": "per layer and side: blocks x block size x elements x element size, blocks = "
    "C x (floor((ISL + OSL) / block) + 1) + 1",
    "states": "per layer: (slots + 1, and a row for each draft of a verify) x elements x element "
    "size",
    "arena": "one buffer for all runs: the largest of their first-fit layouts",
    "workspace": "per kernel family and buffer: its expressions in FAMILIES.toml, widest run",
    "tables": "rope cosines and sines in f32: 2 x max_seq_len x rotary_dim / 2 x 4 per "
    "parameter set",
    "step": "i32 token ids, positions, slots, snapshots and block table: rows of the widest run x "
    "(4 + ceil(max_seq_len / block) + 1) x 4; and a bf16 hidden row a drafting sequence",
}


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
    sizes = {
        "kv": sum(state.bytes for state in states if state.holding == "blocks"),
        "states": sum(state.bytes for state in states if state.holding == "live"),
        "workspace": sum(workspace.bytes for workspace in workspaces),
        "tables": _tables(point),
        "step": _step(point, runs) + drafted * point.planned.circuit.dims["hidden"] * BF16_BYTES,
    }
    kv, states_term, *others = (
        Term(key, size, size, "exact", SOURCES[key]) for key, size in sizes.items()
    )
    return Counts(
        terms=(_weights(point), kv, states_term, _arena(runs), *others),
        nodes=point.planned.nodes,
        states=states,
        runs=runs,
        workspaces=workspaces,
        kv_blocks=num_kv_blocks(point) if sizes["kv"] else 0,
        pool_bytes=sizes["kv"],
        notes=("outside bytes not counted: this engine loads bound tensors only",),
    )


def _weights(point: Point) -> Term:
    """Exact in bf16; other formats follow from their definition, and nobody here allocates them."""
    size, formats = point.planned.weights, point.planned.quantised_formats
    if not formats:
        return Term("weights", size, size, "exact", SOURCES["weights"])
    source = (
        f"bound tensors, each binding once: values and scales of {', '.join(formats)} as declared, "
        "2 bytes an element elsewhere; this engine allocates bf16 only"
    )
    return Term("weights", size, size, "uncalibrated", source)


def _arena(runs: tuple[RunBytes, ...]) -> Term:
    """Exact where kernels cover every op, else a range."""
    size = max(run.arena for run in runs)
    uncovered = dict.fromkeys(op for run in runs for op in run.uncovered)
    if not uncovered:
        return Term("arena", size, size, "exact", SOURCES["arena"])
    low = max((run.arena for run in runs if not run.uncovered), default=0)
    source = (
        f"not planned: no kernel covers {', '.join(uncovered)}; at most one buffer for all runs in "
        "which each op keeps its results"
    )
    return Term("arena", low, size, "uncalibrated", source)


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
            return dtype, formulas.element_bytes(dtype, "serve.kv_cache_dtype")
        case "{ssm_h_storage}":
            dtype = "f16" if point.serve.ssm_h_dtype == "f16-pool" else point.serve.ssm_h_dtype
            return dtype, formulas.element_bytes(dtype, "serve.ssm_h_dtype")
    return group.format, formulas.element_bytes(group.format, group.local)


def _tables(point: Point) -> int:
    return sum(
        formulas.rope_table_bytes(point.serve.max_seq_len, table.rotary_dim)
        for table in point.planned.rope_tables
    )


def _step(point: Point, runs: tuple[RunBytes, ...]) -> int:
    serve, widest = point.serve, max(run.rows for run in runs)
    return formulas.step_input_bytes(widest, serve.max_seq_len, serve.block_size)
