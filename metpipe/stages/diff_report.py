"""The diff's section of the report, from the evidence that `compare` kept and the runs' traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from metpipe.config import modes_of
from metpipe.diff.acceptance import acceptance_of
from metpipe.diff.comparison import Comparison as Found
from metpipe.diff.trace import Trace
from metpipe.diff.verdict import Evidence
from metpipe.report import from_diff
from metpipe.report.diff_section import (
    CaseRow,
    Comparison,
    Coverage,
    DiffSection,
    InvarianceCell,
    Launched,
    Localized,
    Overhead,
    Prompt,
    Speculation,
    Timing,
    VariantRow,
)
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.cases import PLAIN
from metpipe.stages.records import restore
from metpipe.stages.stage_names import StageName

if TYPE_CHECKING:
    from metpipe.stages.live import Live
    from metpipe.stages.write_report import Results

__all__ = ["diff_section"]


def diff_section(live: Live, results: Results) -> DiffSection:
    """What the diff found, case by case."""
    evidence = restore(Evidence, results.records["compare"]["evidence"])
    return DiffSection(
        mode=live.run.diff.mode,
        graphs="graphed" if _is_graphed(results) else "eager",
        steps=live.run.steps,
        variants=tuple(_variants(live, results)),
        prompts=tuple(_prompts(live, results)),
        cases=tuple(_cases(live, results)),
        detection_control=_last_control(results),
        controls=from_diff.controls(evidence.controls),
        repeat=from_diff.controls(evidence.repeats),
        self_test=from_diff.checks(evidence.self_test),
        coverage=tuple(_coverage(results)),
        launched=tuple(_launched(results)),
        vacuous=from_diff.vacuous(evidence.vacuous),
        moved=from_diff.moved(evidence.moved),
        unexercised=evidence.unexercised,
        localized=tuple(_localized(results)),
        speculation=tuple(_speculation(live, results)),
        invariance=(cells := tuple(_invariance(results))),
        invariance_steps=live.invariance_table().steps if cells else None,
        overhead=_overhead(results),
    )


class _Ran(NamedTuple):
    """A run's stage: its name, what the report calls it, its record."""

    stage: StageName
    name: str
    record: dict[str, Any]


def _runs(results: Results, mode: str | None = None) -> list[_Ran]:
    """The reference, its repeats, then the variants; of one mode, or of all."""
    found = []
    for text, record in results.records.items():
        stage = StageName.parse(text)
        if stage is None or stage.kind == "control" or stage.mode == "invariance":
            continue
        if mode is None or stage.mode == mode:
            found.append(_Ran(stage, _shown(stage), record))
    kinds = ("reference", "repeat", "variant")
    return sorted(found, key=lambda ran: kinds.index(ran.stage.kind))


def _shown(stage: StageName) -> str:
    match stage.kind:
        case "reference":
            return "legacy"
        case "repeat":
            return "legacy-repeat" if stage.of == "1" else f"legacy-repeat-{stage.of}"
    return stage.of


def _is_graphed(results: Results) -> bool:
    """Whether every variant replayed graphs."""
    variants = [ran for ran in _runs(results) if ran.stage.kind == "variant"]
    return bool(variants) and all(ran.record["disclosure"]["graphs"] for ran in variants)


def _variants(live: Live, results: Results) -> Iterator[VariantRow]:
    """Each forward once: as it ran in the first mode."""
    first = next((mode for mode in modes_of(live.run) if _runs(results, mode)), None)
    for ran in _runs(results, first):
        if ran.stage.kind == "repeat":
            continue
        disclosed, variant = ran.record["disclosure"], live.run.variants.get(ran.name)
        yield VariantRow(
            name=ran.name,
            plan_digest=ran.record["plans_digest"],
            launches_per_step=disclosed["launches_per_step"],
            forward=disclosed["forward"],
            graphs=disclosed["graphs"],
            expect=variant.expect if variant else "equal",
            rules=tuple(disclosed["rules"]),
        )


def _prompts(live: Live, results: Results) -> Iterator[Prompt]:
    """The cases of plain decoding."""
    runs = _runs(results, "single")
    if not runs:
        return
    for index, prompt in enumerate(live.prompts()):
        yield Prompt(
            tokens=len(prompt),
            comparisons=_comparisons(runs, index, live),
            timings=_timings(runs, index, results),
            digests=from_diff.digests(_trace(runs[0], index)),
        )


def _cases(live: Live, results: Results) -> Iterator[CaseRow]:
    """The cases of every other mode."""
    for mode in modes_of(live.run):
        runs = _runs(results, mode)
        if mode != "single" and runs:
            for index, case in enumerate(live.cases(mode)):
                yield _case(case, runs, index, live, results)


def _case(case: Case, runs: Sequence[_Ran], index: int, live: Live, results: Results) -> CaseRow:
    trace = _trace(runs[0], index)
    changed_row, control = _control_of(case.mode, index, results)
    return CaseRow(
        mode=cast("Any", case.mode),
        name=case.name,
        tokens=tuple(map(len, case.prompts)),
        steps=case.steps,
        rows=case.rows.step,
        path=_path(case),
        restored=case.restored,
        ks=case.widths,
        accepted=trace.accepted,
        slots=trace.slots,
        fragment_slots=case.fragmented,
        drafter=case.num_drafts > 0,
        comparisons=_comparisons(runs, index, live),
        timings=_timings(runs, index, results),
        changed_row=changed_row,
        detection_control=control,
        digests=from_diff.digests(trace),
    )


def _path(case: Case) -> Any:
    """How a prefill came about, in the words that readers of such reports know."""
    if case.mode != "prefill":
        return None
    if case.restored:
        return {"Restored": case.restored}
    return "Single" if case.chunk is None else {"Chunked": case.chunk}


def _control_of(mode: str, index: int, results: Results) -> tuple[int | None, Comparison | None]:
    """Row and run of the last judged variant's first control of a case."""
    for text, record in reversed(results.records.items()):
        stage = StageName.parse(text)
        if stage is None or (stage.mode, stage.kind) != (mode, "control"):
            continue
        pairs = zip(record["changes"], record["comparisons"], strict=True)
        first = next((pair for pair in pairs if pair[0]["case"] == index), None)
        if first is not None:
            change, comparison = first
            return change["row"], from_diff.comparison(restore(Found, comparison))
    return None, None


def _trace(ran: _Ran, index: int) -> Trace:
    return restore(Trace, ran.record["traces"][index])


def _comparisons(runs: Sequence[_Ran], index: int, live: Live) -> tuple[Comparison, ...]:
    return tuple(
        _comparison(ran.name, ran.record["comparisons"][index], live)
        for ran in runs
        if "comparisons" in ran.record
    )


def _timings(runs: Sequence[_Ran], index: int, results: Results) -> tuple[Timing, ...]:
    return tuple(
        from_diff.timing(ran.name, _trace(ran, index), cached=results.cached(ran.stage.text))
        for ran in runs
    )


def _comparison(name: str, record: Any, live: Live) -> Comparison:
    variant = live.run.variants.get(name)
    found = restore(Found, record)
    shown = from_diff.comparison(found, variant.expect if variant else "equal")
    return shown.model_copy(update={"variant": name})


def _last_control(results: Results) -> Comparison | None:
    controls = [
        record
        for text, record in results.records.items()
        if (stage := StageName.parse(text)) is not None and stage.kind == "control"
    ]
    if not controls or not controls[-1]["comparisons"]:
        return None
    return from_diff.comparison(restore(Found, controls[-1]["comparisons"][0]))


def _localized(results: Results) -> Iterator[Localized]:
    for record in results.records.get("localize", {}).get("localized", ()):
        yield Localized.model_validate(record)


def _coverage(results: Results) -> Iterator[Coverage]:
    for ran in _runs(results):
        if ran.stage.kind == "variant":
            for row in ran.record["disclosure"]["coverage"]:
                yield Coverage(variant=ran.name, **row)


def _launched(results: Results) -> Iterator[Launched]:
    """Steps of several sequences: whose slots they saw."""
    for ran in _runs(results):
        disclosed = ran.record["disclosure"]
        for mode, slots in disclosed["slots"].items():
            if ran.stage.kind != "repeat" and any(len(layout) > 1 for layout in slots):
                yield Launched(
                    variant=ran.name, mode=mode, steps=disclosed["steps"][mode], slots=slots
                )


def _speculation(live: Live, results: Results) -> Iterator[Speculation]:
    """Each forward's runs with drafts of its own head, against the same prompt decoded plainly."""
    runs = _runs(results, "verify")
    cases = live.cases("verify") if runs else ()
    plain = next((i for i, case in enumerate(cases) if case.name == PLAIN), None)
    if plain is None:
        return
    for index, case in enumerate(cases):
        for ran in runs if case.drafts_verified else ():
            if not _is_equal(ran, index):
                continue  # it replayed the reference's drafts, and had others of its own
            found = acceptance_of(_trace(ran, index), case.widths[0], _trace(ran, plain))
            if ran.stage.kind != "repeat" and not results.cached(ran.stage.text):
                yield Speculation(
                    variant=ran.name,
                    k=found.width,
                    drafted=found.drafted,
                    accepted=found.accepted,
                    rate=found.rate,
                    by_place=found.by_place,
                    tokens_per_step=found.tokens_per_step,
                    ms_per_token=found.ms_per_token,
                    plain_ms_per_token=found.plain_ms_per_token,
                    speedup=found.speedup,
                )


def _is_equal(ran: _Ran, index: int) -> bool:
    """Whether a run had the reference's bits in a case; the reference has."""
    found = ran.record.get("comparisons")
    return found is None or bool(restore(Found, found[index]))


def _invariance(results: Results) -> Iterator[InvarianceCell]:
    for text, record in results.records.items():
        stage = StageName.parse(text)
        if stage is not None and stage.mode == "invariance":
            for cell in record["cells"]:
                yield InvarianceCell.model_validate(cell)


def _overhead(results: Results) -> Overhead | None:
    """Every stage of the diff: the steps of forwards, and all of its time."""
    forward, total = 0.0, 0.0
    for text, record in results.records.items():
        if text in ("compare", "localize"):
            total += results.events[text].seconds
        elif "disclosure" in record:
            if results.cached(text):
                return None
            forward += record["disclosure"]["seconds"]
            total += results.events[text].seconds
    return Overhead(forward_seconds=forward, total_seconds=total)
