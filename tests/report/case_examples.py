"""Reports of the modes beside plain decoding: batches, verifies, and the same row on two ways."""

from __future__ import annotations

from metpipe.report.diff_section import (
    CaseRow,
    Comparison,
    Difference,
    DiffSection,
    Digests,
    InvarianceCell,
    Overhead,
    Speculation,
    StateDifference,
    Timing,
)
from tests.report.examples import SEVERITY, comparison, control, diff

FORWARDS = ("legacy", "legacy-repeat", "circuit-reference", "circuit")
BATCH = {"tokens": (12, 19, 26), "slots": (0, 2, 3), "fragment_slots": True, "rows": 3}
VERIFY = {"tokens": (12, 19), "slots": (0, 1), "ks": (3, 2), "rows": 5}


def differing(step: int | None, *rows: int, **changes: object) -> Comparison:
    """The circuit's comparison that differs first in these rows of a step."""
    found = Difference(step=step, unequal_bytes=9, first_byte=4, rows=rows, severity=SEVERITY)
    first = {"first_mismatch": step, "mismatched_steps": 7, "max_mismatched_bytes": 9}
    facts = {"prefill_equal": False} if step is None else first
    return comparison("circuit", differences=(found,), severity=SEVERITY, **(facts | changes))


def in_state(*steps: StateDifference, at_end: tuple[str, ...] = ()) -> Comparison:
    """The circuit's comparison whose logits are equal, and states are not."""
    return comparison("circuit", state_steps=steps, state_diff=at_end)


def case(mode: str, name: str, circuit: Comparison | None = None, **changes: object) -> CaseRow:
    facts: dict[str, object] = {
        "mode": mode,
        "name": name,
        "steps": 32,
        "tokens": (23,),
        "slots": (0,),
        "rows": 1,
        "comparisons": (
            comparison("legacy-repeat"),
            comparison("circuit-reference"),
            circuit or comparison("circuit"),
        ),
        "timings": tuple(
            Timing(variant=name, enqueue_ms_median=ms, step_ms_median=ms)
            for name, ms in zip(FORWARDS, (8.0, 8.1, 8.2, 5.0), strict=True)
        ),
        "digests": Digests(prefill=(), steps=()),
    }
    return CaseRow.model_validate(facts | changes)


def controls(mode: str, *verdicts: str) -> tuple[object, ...]:
    """Controls of the circuit in a mode."""
    return tuple(
        control("circuit", verdict, mode=mode, sentence=f"{mode}, control {number}: {verdict}")
        for number, verdict in enumerate(verdicts)
    )


def cell(axis: str, name: str, **changes: object) -> InvarianceCell:
    facts: dict[str, object] = {
        "variant": "circuit",
        "axis": axis,
        "name": name,
        "points": 17,
        "promised": True,
        "row": None,
        "step": None,
        "byte": None,
        "differing": 0,
    }
    return InvarianceCell.model_validate(facts | changes)


def modes(*cases: CaseRow, **changes: object) -> DiffSection:
    """A diff of these cases, without plain decoding."""
    facts: dict[str, object] = {
        "mode": "all" if len({case.mode for case in cases}) > 1 else cases[0].mode,
        "prompts": (),
        "cases": cases,
        "controls": controls(cases[0].mode, "ok", "ok", "ok"),
        "overhead": Overhead(forward_seconds=10.0, total_seconds=11.2),
    }
    return diff(**(facts | changes))


def good() -> DiffSection:
    """Every mode once, everything equal."""
    accepted = ((2, 1), (0, 1), (2, 0))
    return modes(
        case("batch", "width 3, fragmented", **BATCH),
        case("verify", "K=3", ks=(3,), rows=3, accepted=((2,), (1,), (2,), (0,))),
        case("verify_batch", "K=3 2", accepted=accepted, **VERIFY),
        case("prefill", "65 tokens in chunks of 16", path={"Chunked": 16}, steps=2, tokens=(65,)),
        case("swap", "the reference's record"),
        speculation=(
            Speculation(
                variant="circuit",
                k=3,
                drafted=64,
                accepted=24,
                rate=0.375,
                by_place=(0.5, 0.25),
                tokens_per_step=1.75,
                ms_per_token=5.3,
                plain_ms_per_token=8.0,
                speedup=8.0 / 5.3,
            ),
        ),
        invariance=(
            cell("width", "alone against width 8"),
            cell("width", "alone against width 9"),
            cell("prefill_chunks", "whole against chunks of 16", promised=False, differing=3,
                 step=-1, row=0, byte=12, severity=SEVERITY),
        ),
    )  # fmt: skip


def wide() -> DiffSection:
    """Cases whose every column is wide."""
    ks, slots = (4, 4, 3, 3, 2), (0, 1, 3, 4, 5)
    facts = {"tokens": (12, 19, 26, 33, 40), "slots": slots, "ks": ks, "rows": sum(ks)}
    accepted = ((3, 3, 2, 2, 1), (0, 0, 0, 0, 0)) * 8
    return modes(
        case("verify_batch", "K=4 4 3 3 2, fragmented", accepted=accepted, **facts),
        case("verify_batch", "K=2 2 2 2 2, fragmented", differing(31, 13), accepted=accepted,
             **facts),
    )  # fmt: skip


def bad() -> DiffSection:
    """Differences in each mode, and controls that failed."""
    return modes(
        case("batch", "width 3, fragmented", differing(3, 2), **BATCH),
        case("verify", "K=3", differing(5, 1, 2), ks=(3,), rows=3, accepted=((2,), (1,))),
        case("verify_batch", "K=3 2", differing(6, 4), accepted=((2, 1), (0, 0)), **VERIFY),
        case("verify_batch", "K=2 2", in_state(StateDifference(step=9, sequences=(1,))),
             accepted=((1, 1), (0, 0)), **(VERIFY | {"ks": (2, 2)})),
        case("swap", "own record", in_state(at_end=("record", "l0.attn.k"))),
        case("prefill", "17 tokens", differing(None, 0), tokens=(17,)),
        controls=controls("verify", "ok", "lingers", "ok", "blind"),
        invariance=(
            cell("slot", "slot 0 against slot 7", differing=4, step=2, row=0, byte=12,
                 severity=SEVERITY),
            cell("slot", "a fresh slot against a used one"),
            cell("width", "alone against width 8", state_diff=("sequence 1, l0.attn.k",)),
        ),
    )  # fmt: skip
