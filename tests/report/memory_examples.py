"""A plan's record, as the evaluator writes it, to render and to write."""

from __future__ import annotations

__all__ = ["GIB", "WORKLOAD", "fix", "ledger_row", "memory_record", "query", "term"]

WORKLOAD = {"isl": 1024, "osl": 256, "concurrency": 1}
GIB = 1 << 30


def term(name: str, low: int, high: int | None = None, status: str = "exact") -> dict[str, object]:
    sources = {"driver": "uncalibrated: nobody measured a boot on this device; see kernels/"}
    return {
        "id": name,
        "low": low,
        "high": low if high is None else high,
        "status": status,
        "source": sources.get(name, "the checkpoint's shapes"),
    }


def memory_record(*, fits: bool = True) -> dict[str, object]:
    terms = [
        term("weights", 269030400),
        term("kv", 94371840),
        term("state", 0),
        term("arena", 3932160),
        term("driver", 498073600, 4506200000, "uncalibrated"),
    ]
    low = sum(int(str(t["low"])) for t in terms)
    high = sum(int(str(t["high"])) for t in terms)
    budget = 163461086576 if fits else 600000000
    answer = "fits" if fits else "does not fit"
    return {
        "schema": 1,
        "header": {
            "accounting": "metpipe",
            "device": "b200",
            "kernel_set": "cpu",
            "device_bytes": 192307160678,
            "notes": ["the class b200 has no kernel set; planned with the set cpu"],
            "facts": {},
        },
        "terms": terms,
        "nodes": [
            {
                "node": "embed",
                "op": "embed",
                "layer": None,
                "stored": 56623104,
                "derived": [],
                "activations": 9,
                "workspace": 0,
                "state": 0,
            }
        ],
        "states": [],
        "runs": [{"label": "decode", "mode": "decode", "rows": 1, "arena": 9, "materialized": 12}],
        "workspaces": [],
        "totals": {
            "low": low,
            "high": high,
            "budget": budget,
            "host": 0,
            "leaked": 0,
            "planned": 9,
            "headroom_low": budget - high,
            "headroom_high": budget - low,
            "answer": answer,
        },
        "pool": {
            "block_size": 16,
            "block_bytes": 737280,
            "blocks_needed": 81,
            "blocks_low": 215600,
            "blocks_high": 221040,
            "tokens_low": 3449600,
            "tokens_high": 3536640,
        },
        "inverse": {
            "max_concurrency": query(1, 8, 8, 8),
            "max_isl": query(1, 3840, *(3840 if fits else None,) * 2),
            "min_device": query("h100-sxm", "hgx-b300", "h200-sxm", "h100-sxm", sense="least"),
            "max_snapshot_slots": query(None, None, None, None, why="nothing keeps any"),
        },
        "fixes": [] if fits else [fix("workload.osl=16", "fits"), fix("slots=3", "depends")],
        "ranks": [],
        "fullest": 0,
        "ledger": None,
    }


def query(
    low: object,
    high: object,
    surely: object,
    possibly: object,
    *,
    sense: str = "most",
    exceptions: tuple[object, ...] = (),
    why: str = "",
) -> dict[str, object]:
    return {
        "sense": sense,
        "low": low,
        "high": high,
        "surely": surely,
        "possibly": possibly,
        "exceptions": list(exceptions),
        "why": why,
    }


def fix(override: str, answer: str) -> dict[str, object]:
    room = (2**30, 2**31) if answer == "fits" else (-(2**30), 2**30)
    return {
        "override": override,
        "answer": answer,
        "headroom_low": room[0],
        "headroom_high": room[1],
    }


def ledger_row(tag: str, planned: int, measured: int) -> dict[str, object]:
    return {
        "tag": tag,
        "low": planned,
        "high": planned,
        "measured": measured,
        "status": "exact",
        "difference": measured - planned,
        "agrees": measured == planned,
    }
