"""The terms of this engine, each with the status that it has earned and where its bytes come from.

A term is `exact` where the engine's own allocations were held to it: one rank, a kernel set of the
device's class, dtypes that the engine allocates. Elsewhere it says what is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from metpipe.memory import formulas
from metpipe.memory.point import Point
from metpipe.memory.report import RunBytes, StateBytes, Term, WorkspaceBytes

__all__ = ["arena_term", "is_foreign", "rank_term", "state_term", "step_term", "weights_term"]

SOURCES: Mapping[str, str] = {
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

ALLOCATED: Mapping[str, frozenset[str]] = {
    "kv": frozenset({"bf16"}),
    "states": frozenset({"f32"}),
}
"""Dtypes that this engine allocates, by term."""

SPLIT_ROWS, SPLITS = 128, 16
"""A decode that splits its keys keeps parts for each row: the widest that is padded to, and the
most parts of met's engine (section 15 of met's account)."""


def is_foreign(point: Point) -> bool:
    """Whether the device is planned with the kernel set of another class."""
    device = point.device
    return device.kind == "gpu" and point.planned.kernel_set.device_class != device.device_class


def weights_term(point: Point) -> Term:
    """Exact in bf16; other formats follow from their definition, and nobody here allocates them."""
    size, formats = point.planned.weights, point.planned.quantised_formats
    if not formats:
        return Term("weights", size, size, "exact", SOURCES["weights"])
    source = (
        f"bound tensors, each binding once: values and scales of {', '.join(formats)} as declared, "
        "2 bytes an element elsewhere; this engine allocates bf16 only"
    )
    return Term("weights", size, size, "uncalibrated", source)


def state_term(term_id: str, states: Iterable[StateBytes]) -> Term:
    """Paged caches or recurrent states: exact in the dtypes that the engine allocates."""
    held = tuple(states)
    size = sum(state.bytes for state in held)
    strange = sorted({state.dtype for state in held if state.bytes} - ALLOCATED[term_id])
    if not strange:
        return Term(term_id, size, size, "exact", SOURCES[term_id])
    source = f"{SOURCES[term_id]}; this engine does not allocate {', '.join(strange)}"
    return Term(term_id, size, size, "uncalibrated", source)


def arena_term(point: Point, runs: tuple[RunBytes, ...]) -> Term:
    """Exact where the device's own kernels cover every op, else a range.

    Its upper end is one kernel per op, each keeping its results: kernels that fuse keep fewer.
    """
    size = max(run.arena for run in runs)
    uncovered = dict.fromkeys(op for run in runs for op in run.uncovered)
    if uncovered:
        low = max((run.arena for run in runs if not run.uncovered), default=0)
        source = (
            f"not planned: no kernel covers {', '.join(uncovered)}; at most one buffer for all "
            "runs in which each op keeps its results"
        )
        return Term("arena", 0 if is_foreign(point) else low, size, "uncalibrated", source)
    if not is_foreign(point):
        return Term("arena", size, size, "exact", SOURCES["arena"])
    bound = max(point.planned.bound(run.mode, run.rows) for run in runs)
    source = f"{_no_set(point)}: at most one buffer in which each op keeps its results"
    return Term("arena", 0, max(size, bound), "uncalibrated", source)


def workspace_term(point: Point, spaces: tuple[WorkspaceBytes, ...]) -> Term:
    """Exact for the device's own kernels; others may split the keys of attention."""
    size = sum(space.bytes for space in spaces)
    if not is_foreign(point):
        return Term("workspace", size, size, "exact", SOURCES["workspace"])
    source = (
        f"{_no_set(point)}: at most f32 parts of attention over keys split in {SPLITS}, for "
        f"{SPLIT_ROWS} rows: width + 2 x heads each"
    )
    return Term("workspace", 0, size + _split_bytes(point), "uncalibrated", source)


def step_term(point: Point, runs: tuple[RunBytes, ...], drafted: int) -> Term:
    """What a step reads beside edges; `drafted` are the sequences that the draft head serves."""
    serve, widest = point.serve, max(run.rows for run in runs)
    inputs = formulas.step_input_bytes(widest, serve.max_seq_len, serve.block_size)
    hidden = formulas.hidden_row_bytes(drafted, point.planned.circuit.dims["hidden"])
    size = inputs + hidden
    if not is_foreign(point):
        return Term("step", size, size, "exact", SOURCES["step"])
    source = (
        f"{SOURCES['step']}; {_no_set(point)}: the runs of "
        f"{point.planned.kernel_set.name}'s stand in"
    )
    return Term("step", size, size, "uncalibrated", source)


def tables_term(point: Point) -> Term:
    """The rope tables."""
    size = sum(
        formulas.rope_table_bytes(point.serve.max_seq_len, table.rotary_dim)
        for table in point.planned.rope_tables
    )
    return Term("tables", size, size, "exact", SOURCES["tables"])


def rank_term(term: Term) -> Term:
    """The term of one rank of several, which this engine does not run."""
    if term.status != "exact":
        return term
    source = f"{term.source}; a rank's share, held to no allocation: this engine runs one rank"
    return replace(term, status="uncalibrated", source=source)


def _no_set(point: Point) -> str:
    """Why a term of kernels is no more than a range."""
    return f"{point.device.device_class} has no kernel set"


def _split_bytes(point: Point) -> int:
    """Of a head: its sum over the values, its largest score and its sum of weights."""
    if not (width := point.planned.attention_width):
        return 0
    heads = point.planned.circuit.dims["q_heads"]
    return SPLIT_ROWS * SPLITS * (width + 2 * heads) * formulas.TABLE_ELEMENT_BYTES
