"""The verdict of a whole run: which part decides, and whose reasons are given."""

from __future__ import annotations

from typing import Any, cast

import pytest

from metpipe.errors import Exit
from metpipe.stages.live import Live
from metpipe.stages.write_report import Results, verdict_of

NO_RUN = cast("Live", None)
"""Only memory.must_fit is read of it, and no memory was planned here."""


def compare(outcome: str, *reasons: str, groundless: bool = False) -> dict[str, Any]:
    return {"outcome": outcome, "reasons": list(reasons), "groundless": groundless}


def ledger(*, agrees: bool) -> dict[str, Any]:
    row = {"tag": "kv", "low": 8, "high": 8, "measured": 8, "status": "exact", "difference": 0}
    return {"ledger": {"source": "this process", "rows": [row | {"agrees": agrees}]}}


def boot(*, agrees: bool, printed: int = 8) -> dict[str, Any]:
    term = {
        "of": ["kv"],
        "predicted": 8,
        "predicted_high": 8,
        "measured_mib": 8.0,
        "error_percent": 0.0,
        "tolerance_percent": 1.0,
    }
    line = {
        "name": "ring",
        "of": "snapshots",
        "predicted_mib": 8,
        "predicted_high_mib": 8,
        "printed_mib": printed,
        "agrees": printed == 8,
    }
    section = {"source": "b.toml", "checkpoint": "a/b", "version": 2, "unattributed": 0}
    section |= {"kv_blocks": 3, "draft_kv_blocks": 0}
    return {
        "boot": section | {"terms": [{"term": "kv", **term, "agrees": agrees}], "reserve": [line]}
    }


def oracle(*noises: float | None) -> dict[str, Any]:
    rows = [
        {
            "tokens": 3,
            "positions": 5,
            "top1_agreement": 0.5,
            "max_abs_difference": None if noise is None else 9.0,
            "tolerance": 1.0,
            "noise": noise,
            "rms_difference": None,
            "rms_tolerance": 1.0,
            "clear": 0,
            "clear_flips": 0,
        }
        for noise in noises
    ]
    facts = {"name": "transformers", "version": "5", "reader": "safetensors", "sentence": "said"}
    return {"oracle": facts | {"prompts": rows, "passed": False}}


@pytest.mark.parametrize(
    ("records", "outcome", "reasons"),
    [
        ({"compare": compare("PASS"), "ledger": ledger(agrees=True)}, Exit.PASS, 0),
        ({"compare": compare("PASS"), "ledger": ledger(agrees=False)}, Exit.FAIL, 1),
        (
            {"compare": compare("INCONCLUSIVE", "blind"), "ledger": ledger(agrees=False)},
            Exit.FAIL,
            2,
        ),
        (
            {
                "compare": compare("INCONCLUSIVE", "does not repeat", groundless=True),
                "ledger": ledger(agrees=False),
            },
            Exit.INCONCLUSIVE,
            2,
        ),
        ({"compare": compare("PASS"), "oracle": oracle(0.1)}, Exit.FAIL, 1),
        ({"compare": compare("PASS"), "oracle": oracle(None)}, Exit.INCONCLUSIVE, 1),
        ({"compare": compare("PASS"), "oracle": oracle()}, Exit.INCONCLUSIVE, 1),
        ({"compare": compare("FAIL", "differs"), "oracle": oracle()}, Exit.FAIL, 2),
        ({"boot": boot(agrees=True)}, Exit.PASS, 0),
        ({"boot": boot(agrees=False)}, Exit.FAIL, 1),
        ({"boot": boot(agrees=True, printed=10)}, Exit.FAIL, 1),
    ],
    ids=[
        "all well",
        "ledger off",
        "blind, ledger off",
        "groundless, ledger off",
        "oracle disagrees",
        "oracle has no tolerance",
        "oracle compared nothing",
        "differs, oracle compared nothing",
        "boot agrees",
        "boot misses a term",
        "boot misses a line",
    ],
)
def test_the_parts_decide_in_this_order(records, outcome, reasons):
    found = verdict_of(NO_RUN, Results(records, {}))
    assert (found[0], len(found[1])) == (outcome, reasons)
