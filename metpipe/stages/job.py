"""One job: open what its keys depend on, run its stages, write the report, say the exit status."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from metpipe import snapshot
from metpipe.config import NO_GRAPHS, Run
from metpipe.engine.checkpoints import machine_memory
from metpipe.engine.gpu import find_gpu
from metpipe.engine.kernel_sets import KernelSets, open_kernel_sets
from metpipe.engine.planned_tensors import check_planned
from metpipe.engine.runners import check_select
from metpipe.engine.torch_threads import all_cores, torch_threads
from metpipe.errors import ConfigError, Exit
from metpipe.memory.evaluate import evaluate
from metpipe.memory.grid import refuse_all
from metpipe.memory.kernel_set import parse_families
from metpipe.oracle import require_oracle
from metpipe.pipeline import Event, Pipeline, Stage, Store, board, code_digest
from metpipe.resources import kernels_dir
from metpipe.stages.boot import boot_of, check_load
from metpipe.stages.forced import select_of
from metpipe.stages.grid import loads_asked
from metpipe.stages.live import Live
from metpipe.stages.memory import point_of
from metpipe.stages.met_plan import stored_sizes
from metpipe.stages.modes.needs import check_rows
from metpipe.stages.plan import plan
from metpipe.stages.refusals import check
from metpipe.stages.stage_names import StageName
from metpipe.stages.write_report import write_report

__all__ = ["run_job"]

REPEATS_ON_CUDA = 3
"""A GPU may race where a CPU does not."""


def run_job(
    run: Run,
    out_dir: Path,
    console: Console,
    log: Console | None = None,
    *,
    typed: frozenset[str] = frozenset(),
) -> Exit:
    """Run the stages of one job and report them.

    `console` shows how far it is; the report goes to `log`, without one to `console` as well.
    `typed` are the keys that were typed: what nothing reads is then refused, else noted.

    Raises:
        ConfigError: the run asks for what can't be executed or planned.
    """
    if run.oracle is not None and run.pipeline.diff:
        require_oracle()
    sets = open_kernel_sets(run.device, run.kernels, strict=run.hardware.strict)
    live = Live(_as_executed(run, sets), sets, typed=typed)
    stages = _checked_stages(live)
    facts = _facts(live)
    pipeline, store = Pipeline(stages, facts=facts), Store.of_run(out_dir)
    resume = [Store.to_resume(Path(run.resume))] if run.resume else []
    snapshot.add(
        out_dir,
        device=facts["device"],
        checkpoint_digest=facts["checkpoint"],
        kernel_set_digests=facts["kernel_digests"],
    )
    shown = board(console)
    try:
        with torch_threads(1):
            events = list(pipeline.run(store, shown, live=live, resume=resume))
    finally:
        shown.close()
    return _reported(live, pipeline, store, events, out_dir, log or console)


def _checked_stages(live: Live) -> tuple[Stage, ...]:
    """The stages, once nothing is left to refuse that is known before one of them runs.

    Raises:
        ConfigError: the run asks for what can't be executed or planned.
    """
    run = live.run
    if (theirs := live.sets.overlay) is not None:
        parse_families(theirs.texts["FAMILIES.toml"], str(theirs.folder / "FAMILIES.toml"))
    if live.executes and not run.pipeline.rule:
        check(live)
    elif not run.pipeline.rule:
        check_planned(live.checkpoint(), live.circuit())
    if run.ledger.boot is not None:
        boot_of(live)
    if run.pipeline.memory or run.pipeline.ledger:
        point = point_of(live)
        if run.ledger.boot is not None:
            check_load(run.ledger.boot, point)
        evaluate(point)  # what cannot be planned must not cost a run
        if run.grid.is_asked:
            refuse_all(point, loads_asked(run))
    stages = plan(run)
    _check_variants(stages, live)
    return stages


def _reported(
    live: Live,
    pipeline: Pipeline,
    store: Store,
    events: Sequence[Event],
    out_dir: Path,
    log: Console,
) -> Exit:
    """The exit status of a pipeline that has run, once it is reported.

    Raises:
        ConfigError, Exception: what a stage failed with; a diff that was carried through is
            reported first.
    """
    failures = [event.error for event in events if event.error is not None]
    if not _has_evidence(events):
        _raise_first(failures, ConfigError)
    outcome = write_report(live, pipeline, store, events, out_dir, log)
    _raise_first(failures, ConfigError)
    _raise_first(failures, Exception)
    return outcome


def _as_executed(run: Run, sets: KernelSets) -> Run:
    """What follows from the device that executes.

    Raises:
        ConfigError: a variant wants graphs of a device that captures none.
    """
    if sets.device.type == "cuda":
        return run if run.repeat else run.model_copy(update={"repeat": REPEATS_ON_CUDA})
    for name, variant in run.variants.items():
        if variant.graphs:
            raise ConfigError(f"variants.{name}.graphs: {NO_GRAPHS}")
    return run


def _has_evidence(events: Sequence[Event]) -> bool:
    """Whether a diff was carried through: then it is reported, whatever a later stage says."""
    return any(event.stage == "compare" and event.how in ("ran", "cached") for event in events)


def _check_variants(stages: Sequence[Stage], live: Live) -> None:
    """Before anything is decoded: a misspelt rule must not cost a run."""
    for stage in stages:
        name = StageName.parse(stage.name)
        if name is not None and name.kind == "variant" and stage.params["forward"] == "circuit":
            select = select_of(stage.params)
            rules = live.sets.rules_for(overlay=select.overlay)
            check_select(rules, select)
            check_rows(live.all_cases(), live.sizes().max_prefill_rows, rules)


def _facts(live: Live) -> dict[str, object]:
    """What no stage parameter says, yet a result depends on."""
    return {
        "kernel_digests": live.sets.digests,
        "tables": code_digest(kernels_dir(), "*.toml"),
        "device": live.sets.device.type,
        "gpu": _gpu_facts(live),
        "processor": snapshot.processor(),
        "memory_bytes": machine_memory(),
        "cores": all_cores(),
        "versions": {package: version(package) for package in _packages(live.run)},
        "checkpoint": live.checkpoint_digest(),
        "sizes": stored_sizes(live.checkpoint()) if live.run.memory.accounting == "met" else None,
        "prompts": _digest_of("prompts", live.run.prompts),
        "boot": _digest_of("ledger.boot", live.run.ledger.boot),
    }


def _gpu_facts(live: Live) -> dict[str, object] | None:
    """The executing GPU; None where a CPU executes."""
    gpu = find_gpu() if live.sets.device.type == "cuda" else None
    return None if gpu is None else {**asdict(gpu), "triton": version("triton")}


def _packages(run: Run) -> tuple[str, ...]:
    """What computes: a result of another version is another result."""
    return ("torch", "numba", "numpy", "gguf", *(("transformers",) if run.oracle else ()))


def _digest_of(key: str, file: object) -> str | None:
    """Of the file that a key names; None where it names none."""
    if not isinstance(file, str):
        return None
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise ConfigError(f"{key}={file}: cannot be read ({error.strerror})") from error


def _raise_first(failures: list[Exception], kind: type[Exception]) -> None:
    """A failed stage ends the job: its ConfigError is the user's, anything else is a bug."""
    for error in failures:
        if isinstance(error, kind):
            raise error
