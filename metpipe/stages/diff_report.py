"""The diff's section of the report, from the evidence that `compare` kept and the runs' traces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from metpipe.diff.comparison import Comparison as Found
from metpipe.diff.trace import Trace
from metpipe.diff.verdict import Evidence
from metpipe.report import from_diff
from metpipe.report.diff_section import (
    Comparison,
    Coverage,
    DiffSection,
    Localized,
    Prompt,
    VariantRow,
)
from metpipe.stages.records import restore

if TYPE_CHECKING:
    from metpipe.stages.live import Live
    from metpipe.stages.write_report import Results

__all__ = ["diff_section"]


def diff_section(live: Live, results: Results) -> DiffSection:
    """What the diff found, prompt by prompt."""
    evidence = restore(Evidence, results.records["compare"]["evidence"])
    return DiffSection(
        mode="single",
        graphs="eager",
        steps=live.run.steps,
        variants=tuple(_variants(live, results)),
        prompts=tuple(_prompts(live, results)),
        detection_control=_last_control(results),
        controls=from_diff.controls(evidence.controls),
        repeat=from_diff.controls(evidence.repeats),
        self_test=from_diff.checks(evidence.self_test),
        coverage=tuple(_coverage(results)),
        vacuous=from_diff.vacuous(evidence.vacuous),
        moved=from_diff.moved(evidence.moved),
        unexercised=evidence.unexercised,
        localized=tuple(_localized(results)),
    )


def _runs(results: Results) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Stage, name in the report, record: the reference, its repeats, then the variants."""
    yield "reference", "legacy", results.records["reference"]
    for stage, record in results.records.items():
        kind, _, name = stage.partition(":")
        if kind == "repeat":
            yield stage, "legacy-repeat" if name == "1" else f"legacy-repeat-{name}", record
    for stage, record in results.records.items():
        if stage.startswith("variant:"):
            yield stage, stage.partition(":")[2], record


def _variants(live: Live, results: Results) -> Iterator[VariantRow]:
    for stage, name, record in _runs(results):
        if stage.startswith("repeat:"):
            continue
        disclosed = record["disclosure"]
        variant = live.run.variants.get(name)
        yield VariantRow(
            name=name,
            plan_digest=record["plans_digest"],
            launches_per_step=disclosed["launches_per_step"],
            forward=disclosed["forward"],
            graphs=disclosed["graphs"],
            expect=variant.expect if variant else "equal",
            rules=tuple(disclosed["rules"]),
        )


def _prompts(live: Live, results: Results) -> Iterator[Prompt]:
    runs = list(_runs(results))
    for index, prompt in enumerate(live.prompts()):
        traces = {
            (stage, name): restore(Trace, record["traces"][index]) for stage, name, record in runs
        }
        compared = [
            _comparison(name, record["comparisons"][index], live)
            for _, name, record in runs
            if "comparisons" in record
        ]
        timings = [
            from_diff.timing(name, trace, cached=results.cached(stage))
            for (stage, name), trace in traces.items()
        ]
        yield Prompt(
            tokens=len(prompt),
            comparisons=tuple(compared),
            timings=tuple(timings),
            digests=from_diff.digests(traces["reference", "legacy"]),
        )


def _comparison(name: str, record: Any, live: Live) -> Comparison:
    variant = live.run.variants.get(name)
    found = restore(Found, record)
    shown = from_diff.comparison(found, variant.expect if variant else "equal")
    return shown.model_copy(update={"variant": name})


def _last_control(results: Results) -> Comparison | None:
    controls = [r for stage, r in results.records.items() if stage.startswith("control:")]
    if not controls:
        return None
    return from_diff.comparison(restore(Found, controls[-1]["comparisons"][0]))


def _localized(results: Results) -> Iterator[Localized]:
    for record in results.records.get("localize", {}).get("localized", ()):
        yield Localized.model_validate(record)


def _coverage(results: Results) -> Iterator[Coverage]:
    for stage, name, record in _runs(results):
        if stage.startswith("variant:"):
            for row in record["disclosure"]["coverage"]:
                yield Coverage(variant=name, **row)
