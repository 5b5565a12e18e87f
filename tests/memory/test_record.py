"""The record is plain JSON, exact, and its parts add up."""

from __future__ import annotations

import json

from metpipe.memory import check_ledger, evaluate, max_concurrency, max_isl, node_shares, to_record
from metpipe.memory.attribution import widest_run


def test_record_survives_json_and_adds_up(big):
    report = evaluate(big)
    record = to_record(
        report, (max_concurrency(big), max_isl(big)), check_ledger(report, {"kv": 1})
    )
    assert json.loads(json.dumps(record)) == record
    assert record["schema"] == 1
    assert sum(term["high"] for term in record["terms"]) == record["totals"]["high"]
    assert record["totals"]["budget"] - record["totals"]["high"] == record["totals"]["headroom_low"]
    assert record["inverse"]["max_isl"]["surely"] == 40960 - 1024
    assert record["ledger"][1] == {
        "tag": "kv", "low": 6061031424, "high": 6061031424, "measured": 1, "status": "exact",
        "difference": -6061031423, "agrees": False,
    }  # fmt: skip
    assert record["pool"]["tokens_low"] == record["pool"]["blocks_low"] * 16


def test_shares_of_nodes_add_up_to_the_terms(tiny):
    report = evaluate(tiny)
    shares = node_shares(tiny, report)
    assert sum(share.stored for share in shares) == report.term("weights").low
    assert sum(share.state for share in shares) == report.term("kv").low
    run = widest_run(report)
    assert sum(share.activations for share in shares) == run.materialized
    assert {share.op for share in shares if share.state} == {"kv_write"}
