"""compare: gathers the comparisons, judges the controls, tests the comparer: the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metpipe.diff.comparison import Comparison
from metpipe.diff.controls import judge_detection, judge_repeat
from metpipe.diff.records import Control, Disclosure, MovedBytes
from metpipe.diff.self_test import run_self_test
from metpipe.diff.states import differing_labels
from metpipe.diff.vacuity import find_vacuous
from metpipe.diff.verdict import Case, Evidence, groundless, judge
from metpipe.engine.disclosure import Disclosure as Disclosed
from metpipe.pipeline import StageContext
from metpipe.stages.decode import UnownedBytes
from metpipe.stages.live import Live, live_of
from metpipe.stages.records import read_result, restore, to_json

__all__ = ["run_compare"]


def run_compare(context: StageContext) -> Mapping[str, object]:
    """The diff's evidence and its verdict. Needs every run's stage."""
    live = live_of(context)
    runs = {
        name: Ran.read(name, folder) for name, folder in context.inputs.items() if name != "load"
    }
    expects = {name: variant.expect for name, variant in live.run.variants.items()}
    evidence = Evidence(
        cases=_cases(runs, expects),
        repeats=_repeats(runs),
        controls=_controls(runs),
        self_test=run_self_test(
            vocab_size=live.circuit().dims["vocab"], hash_bytes=live.model().hash_bytes
        ),
        moved=_moved(runs),
        unexercised=_unexercised(runs, live),
        vacuous=_vacuous(runs, live.run.variants),
    )
    verdict = judge(evidence)
    return {
        "outcome": verdict.outcome.name,
        "reasons": list(verdict.reasons),
        "groundless": any(groundless(evidence)),
        "evidence": to_json(evidence),
    }


@dataclass(frozen=True, slots=True)
class Ran:
    """One run's stage, read back. `kind`: reference, repeat, variant or control."""

    kind: str
    variant: str
    comparisons: tuple[Comparison, ...]
    unowned: tuple[UnownedBytes, ...]
    disclosure: Disclosed
    changed_step: int | None

    @classmethod
    def read(cls, stage: str, folder: Path) -> Ran:
        """Read a stage named `reference` or `kind:variant`."""
        record: dict[str, Any] = read_result(folder)
        kind, _, variant = stage.partition(":")
        return cls(
            kind=kind,
            variant=variant or "legacy",
            comparisons=restore(tuple[Comparison, ...], record.get("comparisons", ())),
            unowned=restore(tuple[UnownedBytes, ...], record["unowned"]),
            disclosure=restore(Disclosed, record["disclosure"]),
            changed_step=record.get("changed_step"),
        )


def _of_kind(runs: Mapping[str, Ran], kind: str) -> list[Ran]:
    return [ran for ran in runs.values() if ran.kind == kind]


def _cases(runs: Mapping[str, Ran], expects: Mapping[str, Any]) -> tuple[Case, ...]:
    return tuple(
        Case(f"prompt {index}", comparison, expects[ran.variant])
        for ran in _of_kind(runs, "variant")
        for index, comparison in enumerate(ran.comparisons)
    )


def _repeats(runs: Mapping[str, Ran]) -> tuple[Control, ...]:
    return tuple(
        judge_repeat(comparison, name=f"legacy-repeat {ran.variant}, prompt {index}")
        for ran in _of_kind(runs, "repeat")
        for index, comparison in enumerate(ran.comparisons)
    )


def _controls(runs: Mapping[str, Ran]) -> tuple[Control, ...]:
    found = []
    for ran in _of_kind(runs, "control"):
        assert ran.changed_step is not None
        found.append(
            judge_detection(
                ran.comparisons[0],
                changed_step=ran.changed_step,
                baseline=runs[f"variant:{ran.variant}"].comparisons[0],
            )
        )
    return tuple(found)


def _moved(runs: Mapping[str, Ran]) -> tuple[MovedBytes, ...]:
    """Runs in which state that the sequence did not own changed."""
    found = []
    for ran in runs.values():
        for index, bytes_ in enumerate(ran.unowned):
            labels = differing_labels(bytes_.before, bytes_.after)
            if labels or bytes_.moved_at is not None:
                at = "" if bytes_.moved_at is None else f", first after step {bytes_.moved_at}"
                labels = labels or ("written and restored",)
                found.append(MovedBytes(f"{ran.kind}, prompt {index}{at}", ran.variant, labels))
    return tuple(found)


def _unexercised(runs: Mapping[str, Ran], live: Live) -> tuple[str, ...]:
    """A folder of kernels that the user gave, and none of whose rules was in a plan."""
    theirs, folder = live.sets.overlay_rules, live.run.kernels
    if theirs is None:
        return ()
    takes = {name for name, variant in live.run.variants.items() if variant.kernels == "overlay"}
    ran = [run for run in _of_kind(runs, "variant") if run.variant in takes]
    if any(rule in theirs.rules for run in ran for rule in run.disclosure.rules):
        return ()
    return (
        f"kernels={folder}: none of its rules took part, so nothing is shown of them. "
        f"pipeline=rule rule=ID kernels={folder} says why one does not apply.",
    )


def _vacuous(runs: Mapping[str, Ran], variants: Mapping[str, Any]) -> Any:
    """Each variant against the reference, and against each variant before it."""
    ran = {run.variant: run for run in _of_kind(runs, "variant")}
    names = [name for name in variants if name in ran]
    pairs = [("legacy", name) for name in names]
    pairs += [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    disclosures = {name: _disclosure(run.disclosure) for name, run in ran.items()}
    disclosures["legacy"] = _disclosure(runs["reference"].disclosure)
    allowed = [name for name, variant in variants.items() if variant.allow_vacuous]
    return find_vacuous(disclosures, pairs, allowed=allowed)


def _disclosure(disclosed: Disclosed) -> Disclosure:
    return Disclosure(
        disclosed.forward, disclosed.plan_digests, disclosed.kernel_digests, disclosed.graphs
    )
