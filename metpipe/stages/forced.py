"""Runs that are fed the reference's tokens: repeats, variants, controls with one thing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from metpipe.circuit import Select
from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison
from metpipe.diff.logits_file import LogitsFile
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.pipeline import StageContext
from metpipe.stages.live import LEGACY, live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.changes import Change, changes
from metpipe.stages.modes.drive import drive
from metpipe.stages.modes.recording import Recording, Watch
from metpipe.stages.modes.unowned import UnownedBytes
from metpipe.stages.modes.watch import Again, ByBytes, ByDigest, Keep
from metpipe.stages.records import read_result, to_json
from metpipe.stages.reference import logits_path, record_path, traces_of
from metpipe.stages.stage_names import StageName

__all__ = ["run_control", "run_forced", "select_of"]


def run_forced(context: StageContext) -> Mapping[str, object]:
    """Replay every case under the stage's forward and compare it while it runs."""
    replay = _Stage.of(context)
    plan = [_Planned(index, case, trace) for index, case, trace in replay.recorded()]
    return replay.run(plan)


def run_control(context: StageContext) -> Mapping[str, object]:
    """Replay with one thing changed: the first prompt of plain decoding, each case of others."""
    replay = _Stage.of(context)
    recorded, states = replay.recorded(), replay.model.circuit.states.values()
    plan = [
        _Planned(index, change.case, trace, change)
        for index, case, trace in (recorded[:1] if replay.mode == "single" else recorded)
        for change in changes(case, trace, replay.model.vocab_size, states)
    ]
    return replay.run(plan)


def select_of(params: Mapping[str, Any]) -> ForwardSelect:
    """The forward that a stage's parameters ask for."""
    rules = params["rules"]
    if rules in ("reference", "all"):
        select = Select.reference() if rules == "reference" else Select.all()
    elif isinstance(rules, Mapping):
        select = Select.without(rules["without"])
    else:
        select = Select.only(rules)
    return ForwardSelect(
        name=params["name"],
        forward=params["forward"],
        select=select,
        levers=frozenset(params["levers"]),
        overlay=params["kernels"] == "overlay",
        graphs=params["graphs"],
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    """One replay: of which case, what it is compared with, and what is changed in it."""

    index: int
    case: Case
    reference: Trace
    change: Change | None = None

    @property
    def script(self) -> Trace:
        """What is fed."""
        return self.reference if self.change is None else self.change.script


@dataclass(slots=True)
class _Stage:
    """A stage that replays: its model, the reference's folder and record."""

    context: StageContext
    mode: str
    model: Model
    cases: Sequence[Case]
    reference: Path
    record: Mapping[str, Any]

    @classmethod
    def of(cls, context: StageContext) -> _Stage:
        """Read the reference that the stage needs."""
        live, mode = live_of(context), str(context.params["mode"])
        folder = context.inputs[StageName(mode, "reference").text]
        return cls(context, mode, live.model(), live.cases(mode), folder, read_result(folder))

    def recorded(self) -> list[tuple[int, Case, Trace]]:
        """Every case with the reference's trace of it."""
        traces = traces_of(self.record)
        return [(i, case, traces[i]) for i, case in enumerate(self.cases)]

    def run(self, plan: Sequence[_Planned]) -> Mapping[str, object]:
        """Replay all of it under the stage's forward."""
        self.context.progress.total(sum(planned.case.steps for planned in plan))
        forward = self.model.forward(select_of(self.context.params))
        try:
            replays = [_Replay(self, forward, planned).run() for planned in plan]
            disclosure = forward.disclose()
        finally:
            forward.close()
        return {
            "comparisons": to_json(tuple(replay.comparison for replay in replays)),
            "traces": to_json(tuple(replay.trace for replay in replays)),
            "unowned": to_json(tuple(replay.unowned for replay in replays)),
            "contradictions": [
                said
                for planned, replay in zip(plan, replays, strict=True)
                for said in (replay.contradictions if planned.change is None else ())
            ],
            "disclosure": to_json(disclosure),
            "plans_digest": disclosure.plans_digest,
            "changes": [
                {
                    "case": planned.index,
                    "name": planned.change.name,
                    "step": planned.change.step,
                    "row": planned.change.row,
                    "recovers": planned.change.recovers,
                    "writes": planned.change.writes,
                }
                for planned in plan
                if planned.change is not None
            ],
        }


class _Replayed(NamedTuple):
    """What a replay gave."""

    comparison: Comparison
    trace: Trace
    unowned: UnownedBytes
    contradictions: tuple[str, ...]


@dataclass(slots=True)
class _Replay:
    """One case under one forward, compared with the reference's trace."""

    stage: _Stage
    forward: Forward
    planned: _Planned

    def run(self) -> _Replayed:
        """Compare by bytes where the reference's logits were kept, else by digest first."""
        planned = self.planned
        # A control differs from its change on: how far is of no use, and takes its time.
        measured = None if planned.change is None else 1
        steps = planned.case.steps
        comparer = Comparer(self.forward.name, expected_steps=steps, measured=measured)
        run = self._drive(self.forward, self._watch(comparer), planned.script)
        trace = run.trace()
        comparer.state(planned.reference.state_digests, trace.state_digests)
        # Of a control only where it differs counts, which the digests say.
        if planned.change is None and comparer.result().undecoded:
            self._decode_again(comparer)
        return _Replayed(comparer.result(), trace, run.unowned(), tuple(run.contradictions))

    def _watch(self, comparer: Comparer) -> Watch:
        reference, model = self.planned.reference, self.stage.model
        if self.planned.index >= self.stage.record["logits_kept"]:
            return ByDigest(comparer, reference, model.hash_rows)
        path = logits_path(self.stage.reference, self.planned.index)
        rows, device = self.planned.case.rows, model.allocator.device
        return ByBytes(comparer, reference, LogitsFile.read_existing(path, rows, device))

    def _drive(self, forward: Forward, watch: Watch, script: Trace) -> Recording:
        context = self.stage.context
        run = Recording(
            self.stage.model,
            forward,
            self.planned.case,
            watch,
            check_steps=context.params["state_check"] == "step",
            tick=context.progress.advance,
        )
        change = self.planned.change
        record = record_path(self.stage.reference, self.planned.index)
        drive(run, script, record=record, flip=None if change is None else change.flip)
        return run

    def _decode_again(self, comparer: Comparer) -> None:
        """Both forwards once more, for the bytes of steps that differ by digest."""
        case = self.stage.cases[self.planned.index]
        path = self.stage.context.out / "again.npy"
        legacy = self.stage.model.forward(LEGACY)
        try:
            file = LogitsFile.write_new(path, case.rows, self.stage.model.vocab_size)
            again = Recording(self.stage.model, legacy, case, Keep(file), check_steps=False)
            record = record_path(self.stage.reference, self.planned.index)
            drive(again, self.planned.reference, record=record)
            wanted = set(comparer.result().undecoded)
            self._drive(self.forward, Again(comparer, file, wanted), self.planned.script)
        finally:
            legacy.close()
            path.unlink(missing_ok=True)
