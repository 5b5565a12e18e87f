"""Runs that are fed the reference's tokens: repeats, variants, controls with one changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from metpipe.circuit import Select
from metpipe.diff.comparer import Comparer
from metpipe.diff.comparison import Comparison
from metpipe.diff.digest import logits_digest
from metpipe.diff.feeding import Forced, change_token, changed_step
from metpipe.diff.logits_file import LogitsFile
from metpipe.diff.trace import Trace
from metpipe.engine.protocols import RunningForward, StatefulCore
from metpipe.engine.selection import ForwardSelect
from metpipe.pipeline import StageContext
from metpipe.stages.decode import OnLogits, UnownedBytes, decode_prompt
from metpipe.stages.live import LEGACY, live_of
from metpipe.stages.records import read_result, to_json
from metpipe.stages.reference import logits_path, traces_of, writer

__all__ = ["run_control", "run_forced", "select_of"]


def run_forced(context: StageContext) -> Mapping[str, object]:
    """Replay every prompt under the stage's forward and compare it while it runs."""
    return _replay(context, changed=False)


def run_control(context: StageContext) -> Mapping[str, object]:
    """Replay the first prompt with the token fed half way changed."""
    return _replay(context, changed=True)


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
    )


def _replay(context: StageContext, *, changed: bool) -> Mapping[str, object]:
    model = live_of(context).model()
    reference = context.inputs["reference"]
    record = read_result(reference)
    traces = traces_of(record)[: 1 if changed else None]
    context.progress.total(sum(len(trace.fed) for trace in traces))
    forward = model.forward(select_of(context.params))
    try:
        replays = [
            _Replay(
                model,
                forward,
                trace,
                logits_path(reference, index) if index < record["logits_kept"] else None,
                context,
                changed,
            ).run()
            for index, trace in enumerate(traces)
        ]
        disclosure = forward.disclose()
    finally:
        forward.close()
    comparisons, ours, unowned = zip(*replays, strict=True)
    return {
        "comparisons": to_json(comparisons),
        "traces": to_json(ours),
        "unowned": to_json(unowned),
        "disclosure": to_json(disclosure),
        "plans_digest": disclosure.plans_digest,
        "changed_step": changed_step(len(traces[0].fed)) if changed else None,
    }


@dataclass(slots=True)
class _Replay:
    """One prompt under one forward, compared with the reference's trace."""

    model: StatefulCore
    forward: RunningForward
    reference: Trace
    logits: Path | None
    """the reference's of this prompt, if they were kept"""
    context: StageContext
    changed: bool

    def run(self) -> tuple[Comparison, Trace, UnownedBytes]:
        """Compare by bytes where the reference's logits were kept, else by digest first."""
        comparer = Comparer(self.forward.name, expected_steps=len(self.reference.fed))
        file = LogitsFile.read_existing(self.logits) if self.logits else None
        compare = self._by_bytes(comparer, file) if file else self._by_digest(comparer)
        trace, unowned = self._decode(self.forward, compare, self.context.progress.advance)
        comparer.state(self.reference.state_digests, trace.state_digests)
        if file is None and comparer.result().undecoded:
            self._decode_again(comparer)
        return comparer.result(), trace, unowned

    def _fed(self) -> tuple[int, ...]:
        fed = self.reference.fed
        if not self.changed:
            return fed
        return change_token(fed, changed_step(len(fed)), self.model.vocab_size)

    def _decode(
        self,
        forward: RunningForward,
        on_logits: OnLogits,
        tick: Callable[[], object] = lambda: None,
        fed: tuple[int, ...] | None = None,
    ) -> tuple[Trace, UnownedBytes]:
        fed = self._fed() if fed is None else fed
        return decode_prompt(
            self.model,
            forward,
            self.reference.prompt,
            len(fed),
            Forced(fed),
            on_logits=on_logits,
            hash_bytes=self.model.hash_bytes,
            check_steps=self.context.params["state_check"] == "step",
            tick=tick,
        )

    def _by_bytes(self, comparer: Comparer, file: LogitsFile) -> OnLogits:
        def compare(step: int | None, logits_V: torch.Tensor) -> object:
            if step is None:
                return comparer.prefill(file.read_prefill(), logits_V)
            return comparer.step(step, file.read_step(step), logits_V)

        return compare

    def _by_digest(self, comparer: Comparer) -> OnLogits:
        def compare(step: int | None, logits_V: torch.Tensor) -> object:
            digest = logits_digest(logits_V, hash_bytes=self.model.hash_bytes)
            if step is None:
                return comparer.prefill_digest(self.reference.prefill_digest, digest)
            return comparer.step_digest(step, self.reference.step_digests[step], digest)

        return compare

    def _decode_again(self, comparer: Comparer) -> None:
        """Both forwards once more, for the bytes of steps that differ by digest."""
        wanted = set(comparer.result().undecoded)
        path = self.context.out / "again.npy"
        legacy = self.model.forward(LEGACY)
        try:
            file = LogitsFile.write_new(path, len(self.reference.fed), self.model.vocab_size)
            self._decode(legacy, writer(file), fed=self.reference.fed)
            self._decode(self.forward, _comparer_of(comparer, file, wanted))
        finally:
            legacy.close()
            path.unlink(missing_ok=True)


def _comparer_of(comparer: Comparer, file: LogitsFile, wanted: set[int | None]) -> OnLogits:
    def compare(step: int | None, logits_V: torch.Tensor) -> None:
        if step in wanted:
            reference_V = file.read_prefill() if step is None else file.read_step(step)
            comparer.decoded_again(step, reference_V, logits_V)

    return compare
