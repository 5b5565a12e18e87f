"""Turns the stages' results into report.json and the console's tables, and says the exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from metpipe.errors import ConfigError, Exit
from metpipe.pipeline import Event, Pipeline, Store
from metpipe.report import console as console_report
from metpipe.report.boot_section import BootSection
from metpipe.report.grid_picture import draw_grid
from metpipe.report.grid_section import GridSection
from metpipe.report.memory_section import LedgerSection, MemorySection
from metpipe.report.oracle_section import OracleSection
from metpipe.report.rule_section import RuleSection
from metpipe.report.schema import Checkpoint, Planned, Provenance, Report, StageRow
from metpipe.report.shown import Shown
from metpipe.snapshot import SNAPSHOT
from metpipe.stages.devices import executed_on
from metpipe.stages.diff_report import diff_section
from metpipe.stages.live import Live
from metpipe.stages.notes import notes

__all__ = ["write_report"]


def write_report(
    live: Live,
    pipeline: Pipeline,
    store: Store,
    events: Sequence[Event],
    out_dir: Path,
    console: Console,
) -> Exit:
    """Write report.json, show it, and return the run's exit status."""
    results = Results(
        {
            event.stage: pipeline.result(store, event.stage)
            for event in events
            if event.how in ("ran", "cached")
        },
        {event.stage: event for event in events},
    )
    outcome, reasons = verdict_of(live, results)
    rows = tuple(_stage_row(event, pipeline, store) for event in events)
    report = _report(live, results, outcome, reasons, rows, _provenance(live, results, out_dir))
    path = report.write(out_dir)
    wanted = live.run.report
    shown = Shown(wanted.detail, wanted.per_node)
    picture = "" if report.grid is None else draw_grid(report.grid, report.model, out_dir)
    console_report.show(report, console, path, shown, picture)
    return outcome


def _report(
    live: Live,
    results: Results,
    outcome: Exit,
    reasons: tuple[str, ...],
    stages: tuple[StageRow, ...],
    provenance: Provenance,
) -> Report:
    return Report(
        verdict=cast("Any", outcome.name),
        reasons=reasons,
        model=live.run.model.name,
        executed_on=executed_on(live.sets) if live.executes else None,
        planned_for=results.section("memory", "planned_for", Planned),
        notes=tuple(notes(live)) if "load" in results.records else (),
        diff=diff_section(live, results) if "compare" in results.records else None,
        oracle=results.section("oracle", "oracle", OracleSection),
        memory=results.section("memory", "memory", MemorySection),
        ledger=results.section("ledger", "ledger", LedgerSection),
        boot=results.section("boot", "boot", BootSection),
        rule=results.section("rule", "rule", RuleSection),
        grid=results.section("grid", "grid", GridSection),
        stages=stages,
        provenance=provenance,
    )


@dataclass(frozen=True, slots=True)
class Results:
    """The records of the stages that are settled, and how each was settled."""

    records: dict[str, dict[str, Any]]
    events: dict[str, Event]

    def section(self, stage: str, key: str, kind: Any) -> Any:
        """A part of the report that a stage kept as data; None when the stage did not run."""
        record = self.records.get(stage)
        return None if record is None else kind.model_validate(record[key])

    def cached(self, stage: str) -> bool:
        """Whether the stage's result, and so its timings, are from an earlier run."""
        return self.events[stage].how == "cached"


def verdict_of(live: Live, results: Results) -> tuple[Exit, tuple[str, ...]]:
    """USAGE or DIED when a stage failed; else the first of FAIL, INCONCLUSIVE, PASS that is said.

    A diff whose evidence means nothing is INCONCLUSIVE before any part is heard.
    """
    failed = [event for event in results.events.values() if event.how == "failed"]
    refused = [event for event in failed if isinstance(event.error, ConfigError)]
    if refused:
        return Exit.USAGE, tuple(f"stage {event.stage}: {event.error}" for event in refused)
    if failed:
        return Exit.DIED, tuple(f"stage {event.stage} died: {event.error!r}" for event in failed)
    said = [*_said(live, results)]
    if results.records.get("compare", {}).get("groundless"):
        return Exit.INCONCLUSIVE, tuple(reason for _, reason in said)
    for outcome in (Exit.FAIL, Exit.INCONCLUSIVE):
        if any(part == outcome for part, _ in said):
            return outcome, tuple(reason for _, reason in said)
    return Exit.PASS, ()


def _said(live: Live, results: Results) -> Iterator[tuple[Exit, str]]:
    """Each part's reasons, with the outcome that each stands for."""
    if (compare := results.records.get("compare")) is not None:
        for reason in compare["reasons"]:
            yield Exit[compare["outcome"]], reason
    if (oracle := results.section("oracle", "oracle", OracleSection)) and not oracle.passed:
        judged = [row for row in oracle.prompts if row.noise is not None]
        yield Exit.FAIL if judged else Exit.INCONCLUSIVE, oracle.sentence
    if (ledger := results.section("ledger", "ledger", LedgerSection)) and not ledger.agrees:
        wrong = [row.tag for row in ledger.rows if not row.agrees]
        yield Exit.FAIL, f"the ledger does not agree with the plan: {', '.join(wrong)}"
    if (boot := results.section("boot", "boot", BootSection)) and boot.misses:
        yield Exit.FAIL, f"the boot does not agree with the plan: {', '.join(boot.misses)}"
    memory = results.section("memory", "memory", MemorySection)
    if memory and live.run.memory.must_fit and memory.totals.answer != "fits":
        device, answer = memory.header.device, memory.totals.answer
        yield Exit.FAIL, f"memory.must_fit=true, and on {device} the answer is: {answer}"
    if (rule := results.section("rule", "rule", RuleSection)) and not rule.passed:
        yield Exit.INCONCLUSIVE if rule.unexercised else Exit.FAIL, rule.sentence


def _stage_row(event: Event, pipeline: Pipeline, store: Store) -> StageRow:
    cached = event.how == "cached"
    seconds = store.seconds(pipeline.keys[event.stage]) if cached else event.seconds
    error = None if event.error is None else repr(event.error)
    return StageRow(name=event.stage, how=event.how, seconds=seconds, cached=cached, error=error)


def _provenance(live: Live, results: Results, out_dir: Path) -> Provenance:
    snapshot = json.loads((out_dir / SNAPSHOT).read_text())
    load = results.records.get("load")
    checkpoint = (
        Checkpoint(
            name=load["model"],
            source=load["source"],
            reader=load["reader"],
            digest=load["checkpoint_digest"],
        )
        if load
        else None
    )
    return Provenance(
        id=snapshot["id"],
        overrides=tuple(snapshot["overrides"]),
        argv=tuple(snapshot["argv"]),
        python=snapshot["python"],
        versions=snapshot["versions"],
        git=snapshot["git"],
        checkpoint=checkpoint,
        kernel_sets=live.sets.digests,
        rerun=snapshot.get("rerun"),
        resumed=live.run.resume,
    )
