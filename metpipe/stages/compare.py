"""compare: gathers the comparisons, judges the controls, tests the comparer: the verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from metpipe.config import modes_of
from metpipe.diff.comparison import Comparison
from metpipe.diff.controls import judge_detection, judge_path, judge_repeat, other_paths
from metpipe.diff.invariance import Cell
from metpipe.diff.records import Control, Disclosure, MovedBytes, VacuousPair
from metpipe.diff.self_test import run_self_test
from metpipe.diff.speculation import unexercised_accepts
from metpipe.diff.trace import Trace
from metpipe.diff.vacuity import find_vacuous
from metpipe.diff.verdict import Evidence, JudgedCase, groundless, judge
from metpipe.engine.disclosure import Disclosure as Disclosed
from metpipe.nouns import number_of
from metpipe.pipeline import StageContext
from metpipe.stages.invariance.promises import promised_axes
from metpipe.stages.live import Live, live_of
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.unowned import UnownedBytes, moved_bytes
from metpipe.stages.records import read_result, restore, to_json
from metpipe.stages.stage_names import StageName

__all__ = ["run_compare"]

Kept = TypeVar("Kept")
Record = dict[str, Any]
"""What a run's stage kept."""


def run_compare(context: StageContext) -> Mapping[str, object]:
    """The diff's evidence and its verdict. Needs every run's stage."""
    live = live_of(context)
    records = {
        name: read_result(folder)
        for text, folder in context.inputs.items()
        if (name := StageName.parse(text)) is not None
    }
    evidence = _evidence(records, live)
    verdict = judge(evidence)
    return {
        "outcome": verdict.outcome.name,
        "reasons": list(verdict.reasons),
        "groundless": any(groundless(evidence)),
        "evidence": to_json(evidence),
    }


def _evidence(records: Mapping[StageName, Record], live: Live) -> Evidence:
    """Everything that the verdict is made of."""
    runs = [
        Ran.of(name, record, live) for name, record in records.items() if name.mode != "invariance"
    ]
    tables = _tables(records, live)
    unexercised = (
        *_accepts(runs),
        *_restores(runs),
        *_unplanned(records, live),
        *_unused(records, live),
        *_not_replayed(runs, live),
        *_unexercised(records, live),
    )
    return Evidence(
        cases=tuple(_cases(runs, live)),
        repeats=(*_repeats(runs), *_of_tables(tables, "repeats", Control)),
        controls=(*_controls(runs), *_of_tables(tables, "controls", Control)),
        self_test=run_self_test(
            vocab_size=live.circuit().dims["vocab"],
            device=live.model().allocator.device,
            hash_rows=live.model().hash_rows,
        ),
        moved=(*_moved(runs), *_of_tables(tables, "moved", MovedBytes)),
        contradictions=(*_contradictions(records, live), *_rejected(runs, live)),
        unexercised=tuple(dict.fromkeys(unexercised)),
        vacuous=tuple(_vacuous(runs, live)),
        cells=_of_tables(tables, "cells", Cell),
    )


@dataclass(frozen=True, slots=True)
class Ran:
    """One run's stage, read back."""

    name: StageName
    cases: Sequence[Case]
    comparisons: tuple[Comparison, ...]
    traces: tuple[Trace, ...]
    unowned: tuple[UnownedBytes, ...]
    disclosure: Disclosed
    changes: Sequence[Mapping[str, Any]] = field(default_factory=tuple)

    @classmethod
    def of(cls, name: StageName, record: Record, live: Live) -> Ran:
        """What a run's stage kept."""
        changed = record.get("changes", ())
        cases = live.cases(name.mode)
        return cls(
            name=name,
            cases=(
                [cases[change["case"]] for change in changed] if name.kind == "control" else cases
            ),
            comparisons=restore(tuple[Comparison, ...], record.get("comparisons", ())),
            traces=restore(tuple[Trace, ...], record["traces"]),
            unowned=restore(tuple[UnownedBytes, ...], record["unowned"]),
            disclosure=restore(Disclosed, record["disclosure"]),
            changes=changed,
        )

    @property
    def variant(self) -> str:
        """The forward that ran."""
        return self.name.of if self.name.kind in ("variant", "control") else "legacy"


def _tables(records: Mapping[StageName, Record], live: Live) -> list[Record]:
    """The invariance tables of legacy and of the judged variants; others are shown only."""
    return [
        record
        for name, record in records.items()
        if name.mode == "invariance"
        and (name.kind == "reference" or live.run.variants[name.of].expect == "equal")
    ]


def _of_tables(tables: Sequence[Record], key: str, kind: type[Kept]) -> tuple[Kept, ...]:
    """What every table kept under one key."""
    return tuple(restore(kind, kept) for table in tables for kept in table[key])


def _of_kind(runs: Sequence[Ran], kind: str) -> list[Ran]:
    return [ran for ran in runs if ran.name.kind == kind]


def _cases(runs: Sequence[Ran], live: Live) -> Iterator[JudgedCase]:
    for ran in _of_kind(runs, "variant"):
        expect = live.run.variants[ran.variant].expect
        for case, comparison in zip(ran.cases, ran.comparisons, strict=True):
            yield JudgedCase(case.full_name, comparison, expect, case.mode)


def _repeats(runs: Sequence[Ran]) -> Iterator[Control]:
    for ran in _of_kind(runs, "repeat"):
        for case, comparison in zip(ran.cases, ran.comparisons, strict=True):
            name = f"legacy-repeat {ran.name.of}, {case.full_name}"
            yield replace(judge_repeat(comparison, name=name), mode=case.mode)
        reference = next(
            r for r in runs if (r.name.mode, r.name.kind) == (ran.name.mode, "reference")
        )
        elsewhere = other_paths(reference.disclosure.paths, ran.disclosure.paths)
        if elsewhere:
            yield judge_path(elsewhere, name=f"legacy-repeat {ran.name.of}", mode=ran.name.mode)


def _controls(runs: Sequence[Ran]) -> Iterator[Control]:
    """Each changed run, against what the same forward's unchanged run found in the same case."""
    unchanged = [*_of_kind(runs, "repeat"), *_of_kind(runs, "variant")]
    own = {(ran.name.mode, ran.variant): ran for ran in unchanged}
    for ran in _of_kind(runs, "control"):
        baselines = own[ran.name.mode, ran.variant].comparisons
        for case, comparison, change in zip(ran.cases, ran.comparisons, ran.changes, strict=True):
            plain = case.mode == "single"
            judged = judge_detection(
                comparison,
                changed_step=change["step"],
                changed_row=change["row"],
                name=change["name"] if plain else f"{case.full_name}, {change['name']}",
                baseline=baselines[change["case"]],
                owner_of=case.owner_of,
                recovers=change["recovers"],
                writes=change["writes"],
                keeps=not change["recovers"],
            )
            yield replace(judged, mode=case.mode)


def _moved(runs: Sequence[Ran]) -> Iterator[MovedBytes]:
    """Runs in which state that the sequences did not own changed."""
    for ran in runs:
        for case, unowned in zip(ran.cases, ran.unowned, strict=True):
            run = f"{ran.name.kind}, {case.full_name}"
            moved = moved_bytes(unowned, run=run, variant=ran.variant)
            if moved is not None:
                yield moved


def _accepts(runs: Sequence[Ran]) -> Iterator[str]:
    """Verifies whose reference did not take both ways."""
    for ran in _of_kind(runs, "reference"):
        for case, trace in zip(ran.cases, ran.traces, strict=True):
            if case.widths and case.spill is None:
                missing = unexercised_accepts(trace.accepted, case.widths, name=case.full_name)
                if missing is not None:
                    yield missing


def _contradictions(records: Mapping[StageName, Record], live: Live) -> Iterator[str]:
    """What the reference, a repeat or a judged variant said of itself in its cases."""
    shown = {name for name, variant in live.run.variants.items() if variant.expect != "equal"}
    for name, record in records.items():
        if name.kind != "variant" or name.of not in shown:
            yield from record.get("contradictions", ())


def _rejected(runs: Sequence[Ran], live: Live) -> Iterator[str]:
    """Right drafts that the reference's verify rejected, where it promises to equal decode.

    A draft of an even step is the reference's own plain decode of the same tokens.
    """
    arch = live.model().circuit.arch
    promised = promised_axes(live.sets, arch, overlay=False, levers=())
    for ran in _of_kind(runs, "reference") if "verify" in promised else ():
        for case, trace in zip(ran.cases, ran.traces, strict=True):
            right = bool(case.widths) and not case.drafts_verified
            for step, counts in enumerate(trace.accepted if right else ()):
                for sequence, (count, width) in enumerate(zip(counts, case.widths, strict=True)):
                    if (step + sequence) % 2 == 0 and count < width - 1:
                        yield (
                            f"legacy, {case.full_name}: step {step} accepted {count} of "
                            f"{width - 1} drafts of its own plain decode; the kernel set promises "
                            "that a verify's rows equal it."
                        )
                        break


def _rules_used(records: Mapping[StageName, Record], variants: Collection[str]) -> set[str]:
    """The rules in plans of these variants, in any mode."""
    return {
        rule
        for name, record in records.items()
        if name.kind == "variant" and name.of in variants
        for rule in record["disclosure"]["rules"]
    }


def _unused(records: Mapping[StageName, Record], live: Live) -> Iterator[str]:
    """Rules that a variant asked for by name and that no plan of it used."""
    for name, variant in live.run.variants.items():
        if not isinstance(variant.rules, tuple | list):
            continue
        if missing := sorted(set(variant.rules) - _rules_used(records, {name})):
            yield (
                f"{name}: no plan that ran used {', '.join(missing)} of variants.{name}.rules, so "
                "nothing is shown of it."
            )


def _not_replayed(runs: Sequence[Ran], live: Live) -> Iterator[str]:
    """Steps of a variant with graphs that were launched kernel by kernel."""
    for ran in _of_kind(runs, "variant"):
        steps, replays = sum(ran.disclosure.steps.values()), ran.disclosure.replays
        if live.run.variants[ran.variant].graphs and replays < steps:
            yield (
                f"{ran.variant}, {ran.name.mode}: {replays} of {number_of(steps, 'step')} were "
                "replays of a graph, so that it was not graphs that were compared."
            )


def _restores(runs: Sequence[Ran]) -> Iterator[str]:
    """Prefills that should have computed the tail alone and computed something else."""
    for ran in runs:
        for case, trace in zip(ran.cases, ran.traces, strict=True):
            expected = len(case.prompts[0]) - case.restored
            if case.restored and trace.computed != expected:
                yield (
                    f"{ran.variant}, {case.full_name}: the prefill computed {trace.computed} "
                    f"tokens, not the {expected} behind the restored prefix."
                )


def _unplanned(records: Mapping[StageName, Record], live: Live) -> Iterator[str]:
    """Steps of a circuit variant that ran without a plan: legacy, compared with itself."""
    for name, record in records.items():
        if name.kind not in ("variant", "control") or name.of == "legacy":
            continue
        disclosed = restore(Disclosed, record["disclosure"])
        missing = sorted(set(disclosed.steps) - set(disclosed.plan_digests))
        if missing and live.run.variants[name.of].forward == "circuit":
            yield (
                f"{name.of}, {name.mode}: steps ran without a plan ({', '.join(missing)}), so that "
                "it was not the circuit that was compared."
            )


def _unexercised(records: Mapping[StageName, Record], live: Live) -> Iterator[str]:
    """A folder of kernels that the user gave, and none of whose rules was in a plan."""
    theirs, folder = live.sets.overlay_rules, live.run.kernels
    if theirs is None:
        return
    takes = {name for name, variant in live.run.variants.items() if variant.kernels == "overlay"}
    if not _rules_used(records, takes) & set(theirs.rules):
        yield (
            f"kernels={folder}: none of its rules took part, so nothing is shown of them. "
            f"pipeline=rule rule=ID kernels={folder} says why one does not apply."
        )


def _vacuous(runs: Sequence[Ran], live: Live) -> Iterator[VacuousPair]:
    """In each mode, each variant against the reference, and against each variant before it."""
    variants = live.run.variants
    allowed = [name for name, variant in variants.items() if variant.allow_vacuous]
    for mode in modes_of(live.run):
        ran = {
            run.variant: _disclosure(run.disclosure)
            for run in runs
            if run.name.mode == mode and run.name.kind in ("reference", "variant")
        }
        names = [name for name in variants if name in ran]
        pairs = [("legacy", name) for name in names]
        pairs += [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
        where = "" if mode == "single" else f"{mode}: "
        for pair in find_vacuous(ran, pairs, allowed=allowed):
            yield replace(pair, sentence=where + pair.sentence)


def _disclosure(disclosed: Disclosed) -> Disclosure:
    return Disclosure(
        disclosed.forward, disclosed.plan_digests, disclosed.kernel_digests, disclosed.graphs
    )
