"""localize: on a difference, where it starts: the first step, the first op, the rule that wrote it.

The circuit with reference rules and the differing variant run the first case that differs: logits
and states are digested after every step of theirs, and the first step at which they part is run
launch by launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from metpipe.circuit import Select
from metpipe.diff.comparison import Comparison
from metpipe.diff.invariance import Cell
from metpipe.diff.trace import Trace
from metpipe.engine.forward import BoundStep
from metpipe.engine.model import Model
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.step_inputs import RowRun
from metpipe.engine.step_trace import WrittenEdge, first_differing, live_rows, trace_step
from metpipe.errors import ConfigError
from metpipe.pipeline import StageContext
from metpipe.report.diff_section import Localized
from metpipe.stages.forced import select_of
from metpipe.stages.invariance.locate import locate
from metpipe.stages.live import live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.drive import drive
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.unowned import UnownedBytes
from metpipe.stages.modes.watch import Unwatched
from metpipe.stages.records import read_result, restore
from metpipe.stages.reference import read_traces, record_path
from metpipe.stages.stage_names import StageName

__all__ = ["run_localize"]


def run_localize(context: StageContext) -> Mapping[str, object]:
    """A finding for each mode in which a judged circuit variant differs; none when none does."""
    found: list[Localized] = []
    for params in context.params["variants"]:  # type: ignore[attr-defined]
        for mode in context.params["modes"]:  # type: ignore[attr-defined]
            record = read_result(context.inputs[StageName(mode, "variant", params["name"]).text])
            finding = _in_table if mode == "invariance" else _in_mode
            found += finding(context, mode, record, select_of(params))
    return {"localized": [item.model_dump(mode="json") for item in found]}


def _in_table(
    context: StageContext, mode: str, record: Mapping[str, Any], select: ForwardSelect
) -> Iterator[Localized]:
    """The first promised cell of the invariance table that does not hold."""
    cells = restore(tuple[Cell, ...], record["cells"])
    broken = next((cell for cell in cells if cell.promised and not cell), None)
    if broken is not None:
        live = live_of(context)
        yield locate(live.model(), select, live.invariance_table(), broken)


def _in_mode(
    context: StageContext, mode: str, record: Mapping[str, Any], select: ForwardSelect
) -> Iterator[Localized]:
    """The first case of a mode that differs, or moves what is nobody's."""
    comparisons = restore(tuple[Comparison, ...], record["comparisons"])
    unowned = restore(tuple[UnownedBytes, ...], record["unowned"])
    pairs = enumerate(zip(comparisons, unowned, strict=True))
    index = next((i for i, (item, bytes_) in pairs if not item or bytes_.moved), None)
    if index is not None:
        yield _search(context, mode, index, select).run(record["disclosure"]["rules"])


def _search(context: StageContext, mode: str, index: int, select: ForwardSelect) -> _Search:
    """Of one case of a mode."""
    live, folder = live_of(context), context.inputs[StageName(mode, "reference").text]
    return _Search(
        live.model(),
        live.cases(mode)[index],
        read_traces(folder)[index],
        record_path(folder, index),
        select,
        index,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known after a launched step: where it is, its logits' digest and every state's."""

    place: str
    step: int | None
    logits: str
    states: tuple[Mapping[str, str], ...]


@dataclass(slots=True)
class _Observer:
    """Runs a forward's steps and digests them; the one numbered `at` launch by launch."""

    run: Recording
    at: int | None = None
    steps: list[_Step] = field(default_factory=list)
    edges: tuple[WrittenEdge, ...] = ()

    def __call__(self, mode: str, rows: int, runs: Sequence[RowRun], bound: BoundStep) -> None:
        live = partial(live_rows, rows=rows, live=sum(len(run.tokens) for run in runs))
        if self.at == len(self.steps):
            self.edges = trace_step(self.run.model, self.run.forward, mode, rows, live)
        else:
            bound.run()
        step = None if mode == "prefill" else self.run.num_steps
        self.steps.append(
            _Step(
                place="the prefill" if step is None else f"step {step}" + _of_mode(mode),
                step=step,
                logits=self.run.model.hash_bytes(live(bound.logits_SV)),
                states=self._states(runs) if self.at is None else (),
            )
        )

    def _states(self, runs: Sequence[RowRun]) -> tuple[Mapping[str, str], ...]:
        """What each sequence of the step owns, the rows of this step included; and nobody's."""
        found: list[Mapping[str, str]] = []
        for run in runs:
            one = replace(run.sequence)
            if run.position == one.length:
                one.length += len(run.tokens)
            found.append(self.run.model.state_digests(one))
        found.append(self.run.model.unowned_digests(*self.run.sequences))
        return tuple(found)


def _of_mode(mode: str) -> str:
    return "" if mode == "decode" else f" ({mode.replace('_', ' ')})"


@dataclass(slots=True)
class _Search:
    """One variant on the case in which it differs."""

    model: Model
    case: Case
    trace: Trace
    record: Path
    select: ForwardSelect
    index: int

    def run(self, rules: Sequence[str]) -> Localized:
        """Find the step, then the op, then the rules that part from the reference on their own."""
        base = ForwardSelect("reference rules", "circuit", Select.reference())
        ours = self._observed(base).steps
        at = self._first_parting(ours, self._observed(self.select).steps)
        if at is None:
            return self._not_found()
        edge = first_differing(
            self._observed(base, at).edges, self._observed(self.select, at).edges
        )
        alone = [rule for rule in self._suspects(rules) if self._parts(ours, rule)]
        return self._finding(ours[at], edge, alone)

    def _observed(self, select: ForwardSelect, at: int | None = None) -> _Observer:
        """The whole case under one forward, fed the reference's tokens."""
        forward = self.model.forward(select)
        run = Recording(self.model, forward, self.case, Unwatched(), check_steps=False)
        observer = _Observer(run, at)
        forward.observe = observer
        try:
            drive(run, self.trace, record=self.record)
        finally:
            forward.close()
        return observer

    def _first_parting(self, ours: Sequence[_Step], theirs: Sequence[_Step]) -> int | None:
        """The first launched step after which logits or states differ."""
        pairs = enumerate(zip(ours, theirs, strict=True))  # both replay one script
        return next((index for index, (a, b) in pairs if a != b), None)

    def _suspects(self, rules: Sequence[str]) -> list[str]:
        """Rules of the variant that are not reference rules."""
        known = self.model.sets.rules_for(overlay=self.select.overlay).rules
        return [rule for rule in rules if known[rule].numerics.kind != "reference"]

    def _parts(self, ours: Sequence[_Step], rule: str) -> bool:
        """Whether this rule alone, beside the reference rules, moves a bit."""
        alone = replace(self.select, name=rule, select=Select.only([rule]))
        try:
            return self._first_parting(ours, self._observed(alone).steps) is not None
        except ConfigError:
            return False  # it shadows a reference rule, and the rest is not covered without it

    def _finding(self, at: _Step, edge: WrittenEdge | None, alone: Sequence[str]) -> Localized:
        rule = alone[0] if len(alone) == 1 else (edge.rule if edge else None)
        named = (
            f"; on its own the rule {' and the rule '.join(alone)} moves bits"
            if alone
            else "; no rule moves bits on its own"
        )
        if edge is None:
            text = f"parts at {at.place}, in a state and in no edge that both keep in memory"
        else:
            text = f"parts at {at.place}, first in {edge.written}"
        return self._localized(at.step, edge, rule, text + named)

    def _not_found(self) -> Localized:
        text = (
            "it has the bits of the circuit with reference rules, and those are not legacy's: look "
            "at the circuit, or at a reference rule"
        )
        return self._localized(None, None, None, text)

    def _localized(
        self, step: int | None, edge: WrittenEdge | None, rule: str | None, text: str
    ) -> Localized:
        return Localized(
            variant=self.select.name,
            mode=self.case.mode,
            case=self.case.name,
            prompt=self.index if self.case.mode == "single" else None,
            step=step,
            layer=edge.layer if edge else None,
            node=edge.node if edge else "",
            op=edge.op if edge else "",
            rule=rule,
            sentence=f"{self.select.name}, {self.case.full_name}: {text}",
        )
