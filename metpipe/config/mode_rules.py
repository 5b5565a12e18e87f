"""What must hold between the keys of the diff's modes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from metpipe.config.modes import KEYS_OF_MODES, MODE_OF_LIST, READS_PROMPTS, modes_of, reads_prompts
from metpipe.config.problem import Problem, Rule
from metpipe.config.run import Run
from metpipe.nouns import number_of

__all__ = ["MODE_RULES", "companions", "unread"]

MAX_WIDTH, MAX_BATCH_WIDTH = 8, 4
"""Rows of one sequence in a verify step: alone, and in a batch (its drafts and one)."""
DECODED = frozenset(KEYS_OF_MODES) | {
    "diff",
    "diff.mode",
    "variant",
    "steps",
    "prompts",
    "prompt_lengths",
    "repeat",
    "keep_logits",
    "state_check",
}
"""Keys that only decoding reads; what sizes the drafts of a plan is `serve.num_drafts`."""
LISTS = MODE_OF_LIST | {"verify_batch_ks": "verify_batch"}
"""Every list without which a mode has no case -> the mode."""
SHORTEST_SWAP = 4
"""Steps that a spill in the middle needs on both sides together."""


def _one_list(run: Run) -> Iterator[Problem]:
    given = [key for key in MODE_OF_LIST if getattr(run, key) is not None]
    if len(given) > 1 and run.diff.mode == "auto":
        yield Problem(
            given[1],
            f"{' and '.join(given)} ask for different modes; give one of them, or run twice",
        )


def _mode_has_its_list(run: Run) -> Iterator[Problem]:
    """A mode without its list has no case, and a run that leaves it out would still pass."""
    mode = run.diff.mode
    wanted: dict[str, str] = dict(LISTS) if mode == "all" else {}
    if mode in MODE_OF_LIST:
        wanted[mode] = mode
    missing = [key for key in wanted if getattr(run, key) is None]
    if len(missing) == 1:
        (key,) = missing
        yield Problem(key, f"is what the mode {wanted[key]} runs over; give at least one number")
    elif missing:
        yield Problem(
            missing[0],
            f"is what the mode {wanted[missing[0]]} runs over, and null like "
            f"{', '.join(missing[1:])}; give each at least one number, or choose diff=all, which "
            "has a list for every mode",
        )


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
    longest = max(run.prefill or (0,))
    too_wide = [chunk for chunk in run.prefill_chunk or () if chunk >= longest]
    if run.prefill and too_wide:
        yield Problem(
            "prefill_chunk",
            f"{too_wide[0]} splits nothing: the longest prompt of prefill has "
            f"{number_of(longest, 'token')}; leave {too_wide[0]} out, or give a longer prompt",
        )


def _passes(run: Run) -> Iterator[Problem]:
    """What is called a chunk of so many tokens must be one pass."""
    limit, longest = run.serve.max_prefill_tokens, max(run.prefill or (0,))
    widest = max((chunk for chunk in run.prefill_chunk or () if chunk < longest), default=0)
    if widest > limit:
        yield Problem(
            "prefill_chunk",
            f"a chunk of {widest} would run in narrower passes: "
            f"serve.max_prefill_tokens={limit}; raise it, or leave {widest} out",
        )


def _longest_prefill(run: Run) -> Iterator[Problem]:
    """Before such a prompt is made; with the tokens behind it, the job knows to a token."""
    longest, limit = max(run.prefill or (0,)), run.serve.max_seq_len
    if longest > limit:
        yield Problem(
            "prefill",
            f"a prompt of {number_of(longest, 'token')} is longer than serve.max_seq_len={limit}; "
            "shorten it, or raise serve.max_seq_len",
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
            yield Problem(
                key,
                f"is read by the mode {mode}, but diff.mode is {run.diff.mode}; leave it out, or "
                f"choose diff={mode}",
            )


def companions(run: Run, given: Collection[str]) -> Iterator[Problem]:
    """Keys that mean nothing without another one; one that was typed as null is to blame itself.

    Nothing is said where the other one is what the mode itself lacks, or where nothing is decoded.
    """
    mode = run.diff.mode
    needs: Mapping[str, tuple[str, ...]] = {
        "fragment_slots": ("batch", "verify_batch"),
        "ragged": ("verify_batch",),
        "mtp": ("verify", "verify_batch"),
        "verify_batch_ks": ("verify_batch",),
        "verify_batch": ("verify_batch_ks",),
        "prefill_chunk": ("prefill",),
    }
    for key, others in needs.items():
        has_one = any(getattr(run, other) is not None for other in others)
        has_one = has_one or (key == "mtp" and mode in ("swap", "invariance"))
        asked = getattr(run, key) or (key == "ragged" and run.ragged is False)
        is_said = mode == "all" or (mode in others and getattr(run, mode) is None)
        is_read = key not in DECODED or _decodes(run)
        if not asked or not is_read or has_one or is_said:
            continue
        typed = [other for other in others if other in given]
        if typed:
            yield Problem(
                typed[0], f"is null, but {key} needs it; give it a number, or leave it out"
            )
        else:
            yield Problem(key, f"needs {' or '.join(others)} beside it")


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
    if not run.pipeline.diff or reads_prompts(run):
        return
    given = {"prompt_lengths": run.prompt_lengths, "prompts": isinstance(run.prompts, str)}
    for key, is_given in given.items():
        if is_given:
            yield Problem(
                key,
                f"is read by the modes {' and '.join(READS_PROMPTS)}; "
                f"{run.diff.mode} makes prompts of its own",
            )


def _decodes(run: Run) -> bool:
    """Whether anything is decoded: a diff, or the boot of this process."""
    return run.pipeline.diff or (run.pipeline.ledger and run.ledger.boot is None)


def unread(run: Run, given: Collection[str]) -> Iterator[Problem]:
    """Keys whose default is a value: only who typed one can be told that it is not read."""
    if not _decodes(run):
        weights = set() if run.pipeline.rule else {"seed"}
        for key in sorted((DECODED | weights).intersection(given)):
            yield Problem(
                key, f"is read by the diff, which pipeline={run.pipeline.name} leaves out"
            )
        return
    if "max_width" in given and "invariance" not in modes_of(run):
        yield Problem(
            "max_width",
            f"is read by the mode invariance, but diff.mode is {run.diff.mode}; add "
            "diff=invariance, or leave it out",
        )
    if "fragment_slots" in given and run.diff.mode == "all":
        yield Problem(
            "fragment_slots",
            "with diff=all each batch runs without a gap and with one; leave fragment_slots out, "
            "or ask for one mode",
        )


MODE_RULES: tuple[Rule, ...] = (
    _one_list,
    _mode_has_its_list,
    _widths_in_reach,
    _ragged,
    _chunks,
    _passes,
    _longest_prefill,
    _swap,
    _lists_of_another_mode,
    _prompts,
    _prompts_are_read,
)
