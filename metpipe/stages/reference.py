"""reference: the legacy forward, greedy; it fixes the tokens that every later run is fed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from metpipe.diff.logits_file import LogitsFile
from metpipe.diff.trace import Trace
from metpipe.pipeline import StageContext
from metpipe.stages.live import LEGACY, live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.drive import drive
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.watch import Keep
from metpipe.stages.records import read_result, restore, to_json

__all__ = ["logits_path", "read_traces", "record_path", "run_reference", "traces_of"]


def run_reference(context: StageContext) -> Mapping[str, object]:
    """Run every case of the mode; keep traces, and logits up to `keep_logits` bytes."""
    live = live_of(context)
    model, cases = live.model(), live.cases(str(context.params["mode"]))
    kept = cases_kept(cases, model.vocab_size, live.run.keep_logits)
    context.progress.total(sum(case.steps for case in cases))
    forward = model.forward(LEGACY)
    traces, unowned, contradictions = [], [], []
    try:
        for index, case in enumerate(cases):
            file = None
            if index < kept:
                path = logits_path(context.out, index)
                file = LogitsFile.write_new(path, case.rows, model.vocab_size)
            check_steps = context.params["state_check"] == "step"
            run = Recording(model, forward, case, Keep(file), check_steps, context.progress.advance)
            drive(run, None, record=record_path(context.out, index))
            if file is not None:
                file.write_out()
            traces.append(run.trace())
            unowned.append(run.unowned())
            contradictions += run.contradictions
        return {
            "traces": to_json(tuple(traces)),
            "unowned": to_json(tuple(unowned)),
            "contradictions": contradictions,
            "logits_kept": kept,
            "disclosure": to_json(forward.disclose()),
            "plans_digest": None,
        }
    finally:
        forward.close()


def cases_kept(cases: Sequence[Case], vocab: int, keep_bytes: int) -> int:
    """Leading cases whose logits (bf16, prefill and each step) fit into `keep_bytes` together."""
    room = keep_bytes
    for index, case in enumerate(cases):
        room -= case.rows.num_bytes(vocab)
        if room < 0:
            return index
    return len(cases)


def logits_path(folder: Path, case: int) -> Path:
    """Where a case's logits lie in the reference's folder."""
    return folder / f"logits-{case}.npy"


def record_path(folder: Path, case: int) -> Path:
    """Where the record of a case's spilled sequence lies in the reference's folder."""
    return folder / f"record-{case}.npy"


def read_traces(folder: Path) -> tuple[Trace, ...]:
    """The traces that a run's stage kept."""
    return traces_of(read_result(folder))


def traces_of(record: Mapping[str, Any]) -> tuple[Trace, ...]:
    """The traces in a run's record."""
    return restore(tuple[Trace, ...], record["traces"])
