"""A report as a plain record for report.json: a schema number, every size in exact bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from metpipe.memory.attribution import NodeShare
from metpipe.memory.fixes import Fix
from metpipe.memory.inverse import Inverse
from metpipe.memory.ledger import LedgerRow
from metpipe.memory.report import MemoryReport, PoolRoom, RankBytes

__all__ = ["SCHEMA", "to_record"]

SCHEMA = 1


def to_record(
    report: MemoryReport,
    inverse: tuple[Inverse, ...] = (),
    ledger: tuple[LedgerRow, ...] | None = None,
    notes: tuple[str, ...] = (),
    shares: tuple[NodeShare, ...] = (),
    facts: Mapping[str, str] | None = None,
    fixes: tuple[Fix, ...] = (),
) -> dict[str, object]:
    """The report, with what is given beside it.

    Inverse answers, the ledger's rows, further notes, what each node owns, lines of the header,
    changes that would make it fit.
    """
    counts = report.counts
    return {
        "schema": SCHEMA,
        "header": _header(report, notes, facts or {}),
        "terms": [asdict(term) for term in report.terms],
        "nodes": [_share(share) for share in shares],
        "states": [{**asdict(state), "states": list(state.states)} for state in counts.states],
        "runs": [{**asdict(run), "uncovered": list(run.uncovered)} for run in counts.runs],
        "workspaces": [asdict(workspace) for workspace in counts.workspaces],
        "totals": _totals(report),
        "pool": None if report.pool is None else _pool(report.pool),
        "inverse": {answer.query: _inverse(answer) for answer in inverse},
        "fixes": [asdict(fix) for fix in fixes],
        "ranks": [_rank(rank, report.budget) for rank in report.ranks],
        "fullest": report.fullest,
        "ledger": None if ledger is None else [_ledger_row(row) for row in ledger],
    }


def _header(
    report: MemoryReport, notes: tuple[str, ...], facts: Mapping[str, str]
) -> dict[str, object]:
    return {
        "accounting": report.accounting,
        "device": report.device,
        "kernel_set": report.kernel_set,
        "device_bytes": report.device_bytes,
        "notes": [*report.notes, *notes],
        "facts": dict(facts),
    }


def _totals(report: MemoryReport) -> dict[str, object]:
    copies = [copy for node in report.counts.nodes for copy in node.derived]
    return {
        "low": report.total_low,
        "high": report.total_high,
        "budget": report.budget,
        "host": report.counts.host,
        "leaked": sum(copy.bytes for copy in copies if copy.leaked),
        "planned": max(run.arena for run in report.counts.runs),
        "headroom_low": report.headroom_low,
        "headroom_high": report.headroom_high,
        "answer": report.answer,
    }


def _share(share: NodeShare) -> dict[str, object]:
    return {**asdict(share), "derived": [asdict(copy) for copy in share.derived]}


def _pool(pool: PoolRoom) -> dict[str, int]:
    return {
        **asdict(pool),
        "tokens_low": pool.blocks_low * pool.block_size,
        "tokens_high": pool.blocks_high * pool.block_size,
    }


def _rank(rank: RankBytes, budget: int) -> dict[str, object]:
    return {
        **asdict(rank),
        "terms": {term.id: [term.low, term.high] for term in rank.terms},
        "headroom_low": budget - rank.total_high,
        "headroom_high": budget - rank.total_low,
    }


def _inverse(answer: Inverse) -> dict[str, object]:
    return {
        "sense": answer.sense,
        "low": answer.low,
        "high": answer.high,
        "surely": answer.surely,
        "possibly": answer.possibly,
        "exceptions": list(answer.exceptions),
        "why": answer.why,
        "beside": answer.beside,
        "left_out": {why: list(values) for why, values in answer.left_out.items()},
    }


def _ledger_row(row: LedgerRow) -> dict[str, object]:
    return {**asdict(row), "difference": row.difference, "agrees": row.agrees}
