"""The modes of the diff: which key asks for which, and which of them a run has."""

from __future__ import annotations

from metpipe.config.run import Run

__all__ = [
    "KEYS_OF_MODES",
    "MODES",
    "MODE_OF_LIST",
    "READS_PROMPTS",
    "modes_of",
    "reads_prompts",
    "settled",
]

MODES = ("single", "batch", "verify", "verify_batch", "prefill", "swap", "invariance")
"""Every mode of the diff, in the order in which `all` runs them."""
READS_PROMPTS = ("single", "verify")
"""Modes that decode the run's prompts: all of them, or the first."""
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
    "max_width": "invariance",
}
"""Every key that only some mode reads -> the (first) mode that reads it."""


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


def reads_prompts(run: Run) -> bool:
    """Whether some mode decodes the run's prompts; the others make their own."""
    return not set(modes_of(run)).isdisjoint(READS_PROMPTS)
