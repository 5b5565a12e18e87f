"""Which stages a run has: a pure function of its config, tested as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from metpipe.config import Run, Variant, modes_of
from metpipe.pipeline import Stage
from metpipe.stages.boot import run_boot
from metpipe.stages.compare import run_compare
from metpipe.stages.forced import run_control, run_forced
from metpipe.stages.grid import run_grid
from metpipe.stages.invariance.stage import run_invariance
from metpipe.stages.ledger import run_ledger
from metpipe.stages.load import run_load
from metpipe.stages.localize import run_localize
from metpipe.stages.memory import run_memory
from metpipe.stages.oracle import run_oracle
from metpipe.stages.reference import run_reference
from metpipe.stages.rule import run_rule
from metpipe.stages.stage_names import StageName

__all__ = ["plan"]

LEGACY_PARAMS = {
    "name": "legacy",
    "forward": "legacy",
    "rules": "reference",
    "levers": [],
    "graphs": False,
    "kernels": "builtin",
}
REPEATS_ON_CPU = 1
CONTROLLED_LEGACY = ("prefill", "swap")
"""Modes whose controls run under legacy too (diff.md 3.6, 3.7)."""


def plan(run: Run) -> tuple[Stage, ...]:
    """The stages of a run. Everything a stage reads of the config stands in its `params`."""
    return tuple(_stages(run))


def _stages(run: Run) -> Iterator[Stage]:
    if run.pipeline.rule:
        yield Stage("rule", run_rule, _rule_params(run))
        return
    own_ledger = run.pipeline.ledger and run.ledger.boot is None
    if run.pipeline.diff or own_ledger:
        yield Stage("load", run_load, _load_params(run))
    if run.pipeline.diff:
        yield from _diff_stages(run)
    if run.pipeline.memory:
        yield Stage("memory", run_memory, _memory_params(run))
    if run.grid.is_asked:
        grid = {"grid": run.grid.model_dump(mode="json")}
        yield Stage("grid", run_grid, _memory_params(run) | grid)
    if own_ledger:
        yield Stage("ledger", run_ledger, _load_params(run) | _memory_params(run), ("load",))
    elif run.pipeline.ledger:
        yield Stage("boot", run_boot, _memory_params(run) | {"boot": run.ledger.boot})


def _diff_stages(run: Run) -> Iterator[Stage]:
    runs: list[Stage] = []
    for mode in modes_of(run):
        runs += _invariance_stages(run) if mode == "invariance" else _mode_stages(run, mode)
    yield from runs
    yield Stage("compare", run_compare, {}, ("load", *(stage.name for stage in runs)))
    judged = [
        {"name": name, **_variant_params(run, variant)}
        for name, variant in run.variants.items()
        if variant.forward == "circuit" and variant.expect == "equal"
    ]
    modes = modes_of(run)
    seen = [
        name.text
        for mode in modes
        for name in (
            StageName(mode, "reference"),
            *(StageName(mode, "variant", params["name"]) for params in judged),
        )
    ]
    params = {"variants": judged, "modes": list(modes)}
    yield Stage("localize", run_localize, params, ("load", "compare", *seen))
    if run.oracle is not None and "single" in modes_of(run):
        yield Stage("oracle", run_oracle, {"oracle": run.oracle}, ("load", "reference"))


def _invariance_stages(run: Run) -> Iterator[Stage]:
    """The table under legacy, and under each variant."""
    own = {
        "max_width": run.max_width,
        "mtp": run.mtp,
        "steps": run.steps,
        "repeat": run.repeat or REPEATS_ON_CPU,
        "state_check": run.state_check,
    }
    name = StageName("invariance", "reference").text
    yield Stage(name, run_invariance, own | LEGACY_PARAMS, ("load",))
    for variant_name, variant in run.variants.items():
        params = own | _variant_params(run, variant) | {"name": variant_name}
        name = StageName("invariance", "variant", variant_name).text
        yield Stage(name, run_invariance, params, ("load",))


def _mode_stages(run: Run, mode: str) -> Iterator[Stage]:
    """The reference, its repeats, each variant and its control, in one mode."""
    decode = _decode_params(run, mode)
    reference = StageName(mode, "reference").text
    yield Stage(reference, run_reference, decode | LEGACY_PARAMS | {"replica": 0}, ("load",))
    for replica in range(1, (run.repeat or REPEATS_ON_CPU) + 1):
        params = decode | LEGACY_PARAMS | {"name": "legacy-repeat", "replica": replica}
        name = StageName(mode, "repeat", str(replica)).text
        yield Stage(name, run_forced, params, ("load", reference))
    if mode in CONTROLLED_LEGACY:
        params = decode | LEGACY_PARAMS | {"name": "legacy", "replica": 0}
        needs = ("load", reference, StageName(mode, "repeat", "1").text)
        yield Stage(StageName(mode, "control", "legacy").text, run_control, params, needs)
    for name, variant in run.variants.items():
        params = decode | _variant_params(run, variant) | {"name": name, "replica": 0}
        stage = StageName(mode, "variant", name).text
        yield Stage(stage, run_forced, params, ("load", reference))
        if variant.expect == "equal":
            needs = ("load", reference, stage)
            yield Stage(StageName(mode, "control", name).text, run_control, params, needs)


def _variant_params(run: Run, variant: Variant) -> dict[str, Any]:
    """The user's folder reaches circuit variants alone, and never one of reference rules only."""
    params = variant.model_dump(mode="json")
    if run.kernels is None or variant.forward != "circuit" or variant.rules == "reference":
        params["kernels"] = "builtin"
    return params


def _load_params(run: Run) -> dict[str, Any]:
    """What shapes the loaded model and its pools."""
    whole = run.model_dump(mode="json")
    keys = ("model", "seed", "serve", "slots", "device", "kernels", "steps", "prompts")
    modes = [key for mode in modes_of(run) for key in KEYS_READ.get(mode, ())]
    return {key: whole[key] for key in (*keys, "prompt_lengths", *modes)}


KEYS_READ = {
    "batch": ("batch", "fragment_slots"),
    "verify": ("verify", "mtp"),
    "verify_batch": ("verify_batch", "verify_batch_ks", "ragged", "mtp", "fragment_slots"),
    "prefill": ("prefill", "prefill_chunk"),
    "swap": ("mtp",),
    "invariance": ("max_width", "mtp"),
}
"""Mode -> what its cases are made of, beside prompts and steps."""


def _decode_params(run: Run, mode: str) -> dict[str, Any]:
    whole = run.model_dump(mode="json")
    return {
        "mode": mode,
        **{key: whole[key] for key in KEYS_READ.get(mode, ())},
        "layouts": run.diff.mode == "all",
        "steps": run.steps,
        "keep_logits": run.keep_logits,
        "state_check": run.state_check,
    }


def _memory_params(run: Run) -> dict[str, Any]:
    whole = run.model_dump(mode="json")
    keys = ("model", "hardware", "serve", "slots", "workload", "memory", "tree_nodes")
    return {key: whole[key] for key in (*keys, "capture_rows", "prompt_lookup", "device")}


def _rule_params(run: Run) -> Mapping[str, Any]:
    whole = run.model_dump(mode="json")
    return {key: whole[key] for key in ("rule", "model", "kernels", "device", "seed")}
