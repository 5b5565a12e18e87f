"""Which stages a run has: a pure function of its config, tested as a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from metpipe.config import Run, Variant
from metpipe.pipeline import Stage
from metpipe.stages.boot import run_boot
from metpipe.stages.compare import run_compare
from metpipe.stages.forced import run_control, run_forced
from metpipe.stages.ledger import run_ledger
from metpipe.stages.load import run_load
from metpipe.stages.localize import run_localize
from metpipe.stages.memory import run_memory
from metpipe.stages.oracle import run_oracle
from metpipe.stages.reference import run_reference
from metpipe.stages.rule import run_rule

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
    if own_ledger:
        yield Stage("ledger", run_ledger, _load_params(run) | _memory_params(run), ("load",))
    elif run.pipeline.ledger:
        yield Stage("boot", run_boot, _memory_params(run) | {"boot": run.ledger.boot})


def _diff_stages(run: Run) -> Iterator[Stage]:
    decode = _decode_params(run)
    yield Stage("reference", run_reference, decode | LEGACY_PARAMS | {"replica": 0}, ("load",))
    forced = []
    for replica in range(1, (run.repeat or REPEATS_ON_CPU) + 1):
        params = decode | LEGACY_PARAMS | {"name": "legacy-repeat", "replica": replica}
        forced.append(Stage(f"repeat:{replica}", run_forced, params, ("load", "reference")))
    for name, variant in run.variants.items():
        params = decode | _variant_params(run, variant) | {"name": name, "replica": 0}
        forced.append(Stage(f"variant:{name}", run_forced, params, ("load", "reference")))
        if variant.expect == "equal":
            needs = ("load", "reference", f"variant:{name}")
            forced.append(Stage(f"control:{name}", run_control, params, needs))
    yield from forced
    yield Stage(
        "compare", run_compare, {}, ("load", "reference", *(stage.name for stage in forced))
    )
    differing = [
        {"name": name, **_variant_params(run, variant)}
        for name, variant in run.variants.items()
        if variant.forward == "circuit" and variant.expect == "equal"
    ]
    variants = tuple(f"variant:{params['name']}" for params in differing)
    yield Stage(
        "localize",
        run_localize,
        {"variants": differing},
        ("load", "reference", "compare", *variants),
    )
    if run.oracle is not None:
        yield Stage("oracle", run_oracle, {"oracle": run.oracle}, ("load", "reference"))


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
    return {key: whole[key] for key in (*keys, "prompt_lengths")}


def _decode_params(run: Run) -> dict[str, Any]:
    return {
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
