"""A report as a plain record for report.json: a schema number, every size in exact bytes."""

from __future__ import annotations

from dataclasses import asdict

from metpipe.memory.inverse import Inverse
from metpipe.memory.ledger import LedgerRow
from metpipe.memory.report import MemoryReport, NodeBytes, PoolRoom

__all__ = ["SCHEMA", "to_record"]

SCHEMA = 1


def to_record(
    report: MemoryReport,
    inverse: tuple[Inverse, ...] = (),
    ledger: tuple[LedgerRow, ...] | None = None,
    notes: tuple[str, ...] = (),
) -> dict[str, object]:
    """The report, with the inverse answers, the ledger's rows and further notes, where given."""
    counts = report.counts
    return {
        "schema": SCHEMA,
        "header": {
            "accounting": report.accounting,
            "device": report.device,
            "kernel_set": report.kernel_set,
            "device_bytes": report.device_bytes,
            "notes": [*report.notes, *notes],
        },
        "terms": [asdict(term) for term in report.terms],
        "nodes": [{**asdict(node), "derived": _copies(node)} for node in counts.nodes],
        "states": [{**asdict(state), "states": list(state.states)} for state in counts.states],
        "runs": [{**asdict(run), "uncovered": list(run.uncovered)} for run in counts.runs],
        "workspaces": [asdict(workspace) for workspace in counts.workspaces],
        "totals": {
            "low": report.total_low,
            "high": report.total_high,
            "budget": report.budget,
            "headroom_low": report.headroom_low,
            "headroom_high": report.headroom_high,
            "answer": report.answer,
        },
        "pool": None if report.pool is None else _pool(report.pool),
        "inverse": {answer.query: _inverse(answer) for answer in inverse},
        "ledger": None if ledger is None else [_ledger_row(row) for row in ledger],
    }


def _copies(node: NodeBytes) -> list[dict[str, object]]:
    return [asdict(copy) for copy in node.derived]


def _pool(pool: PoolRoom) -> dict[str, int]:
    return {
        **asdict(pool),
        "tokens_low": pool.blocks_low * pool.block_size,
        "tokens_high": pool.blocks_high * pool.block_size,
    }


def _inverse(answer: Inverse) -> dict[str, object]:
    return {
        "low": answer.low,
        "high": answer.high,
        "surely": answer.surely,
        "possibly": answer.possibly,
        "exceptions": list(answer.exceptions),
    }


def _ledger_row(row: LedgerRow) -> dict[str, object]:
    return {**asdict(row), "difference": row.difference, "agrees": row.agrees}
