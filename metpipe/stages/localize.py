"""localize: on a difference, where it starts: the first step, the first op, the rule that wrote it.

The circuit with reference rules and the differing variant run side by side on the first prompt that
differs: state and logits are digested after every step, and the first step at which they part is
run launch by launch.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from metpipe.circuit import Select
from metpipe.diff.comparison import Comparison
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.engine.pools import Sequence as Opened
from metpipe.engine.selection import ForwardSelect
from metpipe.engine.step_trace import WrittenEdge, trace_step
from metpipe.errors import ConfigError
from metpipe.pipeline import StageContext
from metpipe.report.diff_section import Localized
from metpipe.stages.forced import select_of
from metpipe.stages.live import live_of
from metpipe.stages.records import read_result, restore
from metpipe.stages.reference import read_traces

__all__ = ["run_localize"]

PREFILL = -1


def run_localize(context: StageContext) -> Mapping[str, object]:
    """One finding for each judged circuit variant that differs; none when nothing differs."""
    model = live_of(context).model()
    traces = read_traces(context.inputs["reference"])
    found = []
    for params in context.params["variants"]:  # type: ignore[attr-defined]
        record = read_result(context.inputs[f"variant:{params['name']}"])
        comparisons = restore(tuple[Comparison, ...], record["comparisons"])
        prompt = next((i for i, item in enumerate(comparisons) if not item), None)
        if prompt is not None:
            search = _Search(model, traces[prompt], select_of(params), prompt)
            found.append(search.run(record["disclosure"]["rules"]))
    return {"localized": [item.model_dump(mode="json") for item in found]}


@dataclass(frozen=True, slots=True)
class _Step:
    """What is known after a step: the digest of its logits and of every state."""

    logits: str
    states: Mapping[str, str]


@dataclass(slots=True)
class _Search:
    """One variant on the prompt at which it differs."""

    model: Model
    trace: Trace
    select: ForwardSelect
    prompt: int

    def run(self, rules: Sequence[str]) -> Localized:
        """Find the step, then the op, then the rules that part from the reference on their own."""
        base = ForwardSelect("reference rules", "circuit", Select.reference())
        ours = list(self._steps(base))
        at = self._first_parting(ours, self._steps(self.select))
        if at is None:
            return self._not_found()
        edge = self._first_edge(self._edges(base, at), self._edges(self.select, at))
        alone = [rule for rule in self._suspects(rules) if self._parts(ours, rule)]
        return self._finding(at, edge, alone)

    def _steps(self, select: ForwardSelect) -> Generator[_Step, None, None]:
        """The prefill, then every step, under one forward."""
        forward = self.model.forward(select)
        sequence = self.model.open(reserve=len(self.trace.prompt) + len(self.trace.fed))
        try:
            logits = forward.prefill(sequence, self.trace.prompt)
            yield _Step(self.model.hash_bytes(logits), self.model.state_digests(sequence))
            for token in self.trace.fed:
                logits = forward.decode(sequence, token)
                yield _Step(self.model.hash_bytes(logits), self.model.state_digests(sequence))
        finally:
            self.model.close(sequence)
            forward.close()

    def _first_parting(
        self, ours: Sequence[_Step], theirs: Generator[_Step, None, None]
    ) -> int | None:
        """The first step after which logits or states differ; PREFILL for the prefill."""
        # Closed here, not when it is collected: its sequence's slot may be the pool's only one.
        with closing(theirs):
            pairs = zip(ours, theirs, strict=False)
            return next((i + PREFILL for i, (a, b) in enumerate(pairs) if a != b), None)

    def _edges(self, select: ForwardSelect, at: int) -> tuple[WrittenEdge, ...]:
        """The edges of the step `at`, under one forward."""
        forward, sequence = self.model.forward(select), self.model.open()
        try:
            if at == PREFILL:
                return self._prefill_edges(forward, sequence)
            forward.prefill(sequence, self.trace.prompt)
            for token in self.trace.fed[:at]:
                forward.decode(sequence, token)
            return trace_step(self.model, forward, sequence, "decode", self.trace.fed[at : at + 1])
        finally:
            self.model.close(sequence)
            forward.close()

    def _prefill_edges(self, forward: Forward, sequence: Opened) -> tuple[WrittenEdge, ...]:
        """The edges of every chunk of the prefill, one chunk after another."""
        written: list[WrittenEdge] = []
        limit = self.model.sizes.max_prefill_rows
        for start in range(0, len(self.trace.prompt), limit):
            tokens = self.trace.prompt[start : start + limit]
            written += trace_step(self.model, forward, sequence, "prefill", tokens)
        return tuple(written)

    def _first_edge(
        self, ours: Sequence[WrittenEdge], theirs: Sequence[WrittenEdge]
    ) -> WrittenEdge | None:
        """The first edge in memory on both sides that differs, in the variant's order."""
        known: dict[str, list[str]] = {}
        for item in ours:
            known.setdefault(item.edge, []).append(item.digest)
        for item in theirs:
            if known.get(item.edge) and known[item.edge].pop(0) != item.digest:
                return item
        return None

    def _suspects(self, rules: Sequence[str]) -> list[str]:
        """Rules of the variant that are not reference rules."""
        known = self.model.sets.rules_for(overlay=self.select.overlay).rules
        return [rule for rule in rules if known[rule].numerics.kind != "reference"]

    def _parts(self, ours: Sequence[_Step], rule: str) -> bool:
        """Whether this rule alone, beside the reference rules, moves a bit."""
        alone = replace(self.select, name=rule, select=Select.only([rule]))
        try:
            return self._first_parting(ours, self._steps(alone)) is not None
        except ConfigError:
            return False  # it shadows a reference rule, and the rest is not covered without it

    def _finding(self, at: int, edge: WrittenEdge | None, alone: Sequence[str]) -> Localized:
        where = "the prefill" if at == PREFILL else f"step {at}"
        rule = alone[0] if len(alone) == 1 else (edge.rule if edge else None)
        named = (
            f"; on its own the rule {' and the rule '.join(alone)} moves bits"
            if alone
            else "; no rule moves bits on its own"
        )
        if edge is None:
            text = f"parts at {where}, in a state and in no edge that both keep in memory"
        else:
            members = ", ".join(edge.members)
            text = (
                f"parts at {where}, first in {edge.edge} ({edge.op}), written by the rule "
                f"{edge.rule} over {members}"
            )
        return self._localized(at, edge, rule, text + named)

    def _not_found(self) -> Localized:
        text = (
            "it has the bits of the circuit with reference rules, and those are not legacy's: look "
            "at the circuit, or at a reference rule"
        )
        return self._localized(PREFILL, None, None, text)

    def _localized(
        self, at: int, edge: WrittenEdge | None, rule: str | None, text: str
    ) -> Localized:
        return Localized(
            variant=self.select.name,
            prompt=self.prompt,
            step=None if at == PREFILL else at,
            layer=edge.layer if edge else None,
            node=edge.node if edge else "",
            op=edge.op if edge else "",
            rule=rule,
            sentence=f"{self.select.name}, prompt {self.prompt}: {text}",
        )
