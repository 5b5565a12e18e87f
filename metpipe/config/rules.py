"""What must hold between the keys of a run, and which modes this version runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from metpipe.config.run import Run

__all__ = [
    "KEYS_OF_MODES",
    "MODES",
    "NO_GRAPHS",
    "WHAT_IFS",
    "Problem",
    "modes_of",
    "problems",
    "settled",
]

MODES = ("single", "batch", "verify", "verify_batch", "prefill", "swap", "invariance")
"""Every mode of the diff, in the order in which `all` runs them."""
MAX_WIDTH, MAX_BATCH_WIDTH = 8, 4
"""Rows of one sequence in a verify step: alone, and in a batch (its drafts and one)."""
READS_PROMPTS = ("single", "verify")
"""Modes that decode the run's prompts: all of them, or the first."""
SHORTEST_SWAP = 4
"""Steps that a spill in the middle needs on both sides together."""
MODE_OF_LIST = {
    "batch": "batch",
    "verify": "verify",
    "verify_batch": "verify_batch",
    "prefill": "prefill",
}
"""The key whose list asks for a mode -> the mode."""
KEYS_OF_MODES = MODE_OF_LIST | {
    "fragment_slots": "batch",
    "mtp": "verify",
    "verify_batch_ks": "verify_batch",
    "ragged": "verify_batch",
    "prefill_chunk": "prefill",
}
"""Every key that only some mode reads -> the (first) mode that reads it."""
WHAT_IFS = ("tree_nodes", "capture_rows", "prompt_lookup")
"""Keys that size memory of speculation, which the metpipe accounting does not count."""

NO_GRAPHS = "a CPU captures no launches; leave it at false, or run with device=cuda"
RESERVED = ("legacy", "legacy-repeat")
"""What reports call the reference and its repeats."""


class Problem(NamedTuple):
    """One thing that is wrong: the key, and a sentence that says what and what to do."""

    key: str
    message: str


def settled(run: Run) -> Run:
    """The run with its mode decided: the list that is given decides; none of them is `single`."""
    run = _with_drafts(run)
    asked = [mode for key, mode in MODE_OF_LIST.items() if getattr(run, key) is not None]
    if run.diff.mode != "auto" or len(asked) > 1:
        return run
    mode = asked[0] if asked else "single"
    return run.model_copy(update={"diff": run.diff.model_copy(update={"mode": mode})})


def _with_drafts(run: Run) -> Run:
    """The largest K of a list sets `serve.num_drafts` to one less, unless that is given."""
    widths = (*(run.verify or ()), *(run.verify_batch_ks or ()))
    if not widths or run.serve.num_drafts is not None:
        return run
    serve = run.serve.model_copy(update={"num_drafts": max(widths) - 1})
    return run.model_copy(update={"serve": serve})


def modes_of(run: Run) -> tuple[str, ...]:
    """The modes that a run's diff has."""
    return MODES if run.diff.mode == "all" else (run.diff.mode,)


def problems(run: Run) -> Iterator[Problem]:
    """Everything that is wrong between the keys, in the order of the rules below."""
    for rule in RULES:
        yield from rule(run)


def _one_list(run: Run) -> Iterator[Problem]:
    given = [key for key in MODE_OF_LIST if getattr(run, key) is not None]
    if len(given) > 1 and run.diff.mode == "auto":
        yield Problem(
            given[1],
            f"{' and '.join(given)} ask for different modes; give one of them, or run twice",
        )


def _mode_has_its_list(run: Run) -> Iterator[Problem]:
    mode = run.diff.mode
    if mode in MODE_OF_LIST and getattr(run, mode) is None:
        yield Problem(mode, f"is what the mode {mode} runs over; give at least one number")


def _widths_in_reach(run: Run) -> Iterator[Problem]:
    limits = {"verify": (MAX_WIDTH, ""), "verify_batch_ks": (MAX_BATCH_WIDTH, " of a batch")}
    for key, (limit, where) in limits.items():
        widths = getattr(run, key) or ()
        if widths and max(widths) > limit:
            yield Problem(
                key, f"K={max(widths)} is beyond the {limit} rows that a sequence{where} may verify"
            )


def _ragged(run: Run) -> Iterator[Problem]:
    if not run.ragged or run.verify_batch is None:
        return
    kinds = len(set(run.verify_batch_ks or ()))
    if kinds < 2:
        yield Problem("ragged", "mixes widths: give verify_batch_ks at least two different Ks")
    elif min(run.verify_batch) < kinds:
        yield Problem(
            "ragged",
            f"gives each of the {kinds} Ks a sequence: verify_batch must be at least {kinds}",
        )


def _chunks(run: Run) -> Iterator[Problem]:
    if run.prefill and run.prefill_chunk and max(run.prefill_chunk) >= max(run.prefill):
        yield Problem(
            "prefill_chunk",
            f"{max(run.prefill_chunk)} splits nothing: the longest prompt of prefill has "
            f"{max(run.prefill)} tokens",
        )


def _swap(run: Run) -> Iterator[Problem]:
    if run.pipeline.diff and "swap" in modes_of(run) and run.steps < SHORTEST_SWAP:
        yield Problem(
            "steps",
            f"the mode swap saves a sequence half way: at least {SHORTEST_SWAP}, got {run.steps}",
        )


def _lists_of_another_mode(run: Run) -> Iterator[Problem]:
    for key, mode in MODE_OF_LIST.items():
        if getattr(run, key) is not None and run.diff.mode not in (mode, "auto", "all"):
            yield Problem(key, f"is read by the mode {mode}, but diff.mode is {run.diff.mode}")


def _companions(run: Run) -> Iterator[Problem]:
    """Keys that mean nothing without another one."""
    needs: Mapping[str, tuple[str, ...]] = {
        "fragment_slots": ("batch", "verify_batch"),
        "ragged": ("verify_batch",),
        "mtp": ("verify", "verify_batch"),
        "verify_batch_ks": ("verify_batch",),
        "verify_batch": ("verify_batch_ks",),
        "prefill_chunk": ("prefill",),
    }
    for key, others in needs.items():
        given = any(getattr(run, other) is not None for other in others)
        given = given or (key, run.diff.mode) == ("mtp", "swap")
        if getattr(run, key) and not given and run.diff.mode != "all":
            yield Problem(key, f"needs {' or '.join(others)} beside it")


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


def _what_ifs(run: Run) -> Iterator[Problem]:
    for key in WHAT_IFS:
        if getattr(run, key) and run.memory.accounting != "met":
            yield Problem(
                key,
                "sizes memory of speculative decoding, which the metpipe accounting does not "
                "count; leave it out, or set memory.accounting=met",
            )
    if run.memory.met_version is not None and run.memory.accounting != "met":
        yield Problem("memory.met_version", "is read with memory.accounting=met only")


def _boot(run: Run) -> Iterator[Problem]:
    if run.ledger.boot is None:
        return
    if not run.pipeline.ledger:
        yield Problem("ledger.boot", f"pipeline={run.pipeline.name} leaves the ledger out")
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


def _prompts(run: Run) -> Iterator[Problem]:
    if isinstance(run.prompts, str) and run.prompt_lengths is not None:
        yield Problem("prompt_lengths", "sizes synthetic prompts; a .jsonl has lengths of its own")
    longest = max(run.prompt_lengths or (0,)) + run.steps
    if run.prompt_lengths and run.pipeline.diff and longest > run.serve.max_seq_len:
        yield Problem(
            "prompt_lengths",
            f"the longest prompt and {run.steps} steps are {longest} tokens, over "
            f"serve.max_seq_len={run.serve.max_seq_len}; raise it or shorten the prompt",
        )


def _prompts_are_read(run: Run) -> Iterator[Problem]:
    """Prompts that were asked for and that no mode of the run would decode."""
    if not run.pipeline.diff or not set(modes_of(run)).isdisjoint(READS_PROMPTS):
        return
    given = {"prompt_lengths": run.prompt_lengths, "prompts": isinstance(run.prompts, str)}
    for key, is_given in given.items():
        if is_given:
            yield Problem(
                key,
                f"is read by the modes {' and '.join(READS_PROMPTS)}; "
                f"{run.diff.mode} makes prompts of its own",
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
            yield Problem(key, f"there is no {kind} {path!r} (looked in {Path.cwd()})")


Rule: TypeAlias = Callable[[Run], Iterator[Problem]]
RULES: tuple[Rule, ...] = (
    _one_list,
    _mode_has_its_list,
    _widths_in_reach,
    _ragged,
    _chunks,
    _swap,
    _lists_of_another_mode,
    _companions,
    _model_has_a_source,
    _what_ifs,
    _boot,
    _rule,
    _read_by_the_diff,
    _prompts,
    _prompts_are_read,
    _legacy_has_no_rules,
    _no_graphs,
    _variant_names,
    _rank,
    _files_exist,
)
