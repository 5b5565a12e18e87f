"""What must hold between the keys of a run, whatever its modes."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path

from metpipe.config.fields import MOST_NUMBERS
from metpipe.config.mode_rules import MODE_RULES, companions, unread
from metpipe.config.problem import Problem, Rule
from metpipe.config.run import Run
from metpipe.config.serve_rules import SERVE_RULES
from metpipe.file_kind import kind_of

__all__ = ["NO_GRAPHS", "WHAT_IFS", "problems"]

WHAT_IFS = ("tree_nodes", "capture_rows", "prompt_lookup")
"""Keys that size memory of speculation, which the metpipe accounting does not count."""
NO_GRAPHS = "a CPU captures no launches; leave it at false, or run with device=cuda"
MOST_LOADS = MOST_NUMBERS
"""Loads of one grid: minutes of work, and tens of MB of report."""
RESERVED = ("legacy", "legacy-repeat")
"""What reports call the reference and its repeats."""


def problems(run: Run, given: Collection[str]) -> Iterator[Problem]:
    """Everything that is wrong between the keys, in the order of the rules.

    `given`: the keys that overrides set.
    """
    for rule in (*MODE_RULES, *SERVE_RULES, *RULES):
        yield from rule(run)
    yield from companions(run, given)
    yield from unread(run, given)


def _model_has_a_source(run: Run) -> Iterator[Problem]:
    model = run.model
    given = [key for key in ("checkpoint", "config", "package") if getattr(model, key) is not None]
    if len(given) != 1:
        stated = " and ".join(given) or "none"
        yield Problem(
            "model", f"needs one of checkpoint, config and package, but {stated} is given"
        )
    if model.weights != "random" and model.config is None:
        yield Problem(
            "model.weights", "says how weights are made for model.config, but none is given"
        )


def _some_part(run: Run) -> Iterator[Problem]:
    parts = ("diff", "memory", "ledger", "rule")
    if not any(getattr(run.pipeline, part) for part in parts):
        yield Problem(
            "pipeline",
            f"{', '.join(parts[:-1])} and {parts[-1]} are all false, so that nothing would run; "
            "leave one true, or choose pipeline=NAME",
        )


def _what_ifs(run: Run) -> Iterator[Problem]:
    for key in WHAT_IFS:
        if getattr(run, key) and run.memory.accounting != "met":
            yield Problem(
                key,
                "sizes memory of speculative decoding, which the metpipe accounting does not "
                "count; leave it out, or set memory.accounting=met",
            )
    speculates = run.serve.speculative or run.serve.dflash
    if run.tree_nodes and run.memory.accounting == "met" and not speculates:
        yield Problem(
            "tree_nodes",
            "sizes the verify of a serve that speculates; add serve.speculative=true, or "
            "leave it out",
        )
    if run.memory.met_version is not None and run.memory.accounting != "met":
        yield Problem("memory.met_version", "is read with memory.accounting=met only")


def _boot(run: Run) -> Iterator[Problem]:
    if run.ledger.boot is None:
        return
    if not run.pipeline.ledger:
        yield Problem(
            "ledger.boot",
            f"pipeline={run.pipeline.name} leaves the ledger out; add pipeline=ledger",
        )
    elif run.pipeline.diff:
        yield Problem(
            "ledger.boot",
            f"is a boot of another engine, which no diff runs, and pipeline={run.pipeline.name} "
            "has one; add pipeline=ledger",
        )
    if run.memory.accounting != "met":
        yield Problem(
            "ledger.boot",
            "is a boot of met's engine; plan it with memory.accounting=met, or leave it out",
        )


def _rule(run: Run) -> Iterator[Problem]:
    if run.pipeline.rule and run.rule is None:
        yield Problem("rule", "pipeline=rule needs the id of the rule to judge: rule=ID")
    if not run.pipeline.rule and run.rule is not None:
        yield Problem("rule", "is read by pipeline=rule only; add that, or leave the rule out")


def _read_by_the_diff(run: Run) -> Iterator[Problem]:
    pipeline = run.pipeline
    if run.oracle is not None and not pipeline.diff:
        yield Problem("oracle", f"is read by the diff, which pipeline={pipeline.name} leaves out")
    if run.kernels is not None and not (pipeline.diff or pipeline.rule):
        yield Problem(
            "kernels",
            "is read by the diff and by pipeline=rule; memory is planned with the built-in set, "
            "so leave it out",
        )


def _legacy_has_no_rules(run: Run) -> Iterator[Problem]:
    for name, variant in run.variants.items():
        if variant.forward == "legacy" and (variant.rules != "reference" or variant.levers):
            yield Problem(
                f"variants.{name}",
                "the legacy forward is written by hand and takes no rules or levers; "
                "use forward: circuit",
            )


def _no_graphs(run: Run) -> Iterator[Problem]:
    """device=auto is looked at when it is known what that is."""
    for name, variant in run.variants.items():
        if variant.graphs and run.device == "cpu":
            yield Problem(f"variants.{name}.graphs", NO_GRAPHS)


def _variant_names(run: Run) -> Iterator[Problem]:
    for name in RESERVED:
        if name in run.variants:
            yield Problem(
                f"variants.{name}", "is the name of the reference or its repeat; choose another one"
            )


def _rank(run: Run) -> Iterator[Problem]:
    ranks = (
        run.serve.tensor_parallel_size
        * run.serve.pipeline_parallel_size
        * run.serve.expert_parallel_size
    )
    if run.serve.rank >= ranks:
        yield Problem("serve.rank", f"must be below the number of ranks, which is {ranks}")


def _files_exist(run: Run) -> Iterator[Problem]:
    prompts = run.prompts if isinstance(run.prompts, str) else None
    wanted = {
        "prompts": (prompts, os.path.isfile, "file"),
        "kernels": (run.kernels, os.path.isdir, "folder"),
        "resume": (run.resume, os.path.isdir, "folder"),
        "ledger.boot": (run.ledger.boot, os.path.isfile, "file"),
        "model.checkpoint": (run.model.checkpoint, os.path.exists, "file or folder"),
    }
    for key, (path, exists, kind) in wanted.items():
        if path is not None and not exists(path):
            found = kind_of(path) if kind == "file" else ""
            said = f"{found}, and a file is needed: {path!r}" if found else ""
            yield Problem(key, said or f"there is no {kind} {path!r} (looked in {Path.cwd()})")


def _grid(run: Run) -> Iterator[Problem]:
    grid = run.grid
    if not grid.is_asked:
        return
    if not run.pipeline.memory:
        yield Problem("grid", f"plans memory, which pipeline={run.pipeline.name} leaves out")
    loads = math.prod(len(axis or (1,)) for axis in (grid.isl, grid.osl, grid.concurrency))
    if loads > MOST_LOADS:
        yield Problem("grid", f"has {loads:,} loads, above {MOST_LOADS:,}; give it larger steps")


RULES: tuple[Rule, ...] = (
    _model_has_a_source,
    _some_part,
    _what_ifs,
    _boot,
    _rule,
    _read_by_the_diff,
    _legacy_has_no_rules,
    _no_graphs,
    _variant_names,
    _rank,
    _files_exist,
    _grid,
)
