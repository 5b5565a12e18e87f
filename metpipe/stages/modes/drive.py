"""Drives a case through a forward: the reference decides the tokens, every other run replays them.

Shapes: S sequences, R rows of a step, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import torch

from metpipe.diff.argmax import argmax_rows
from metpipe.diff.trace import Trace
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.spill import resumed, spilled
from metpipe.stages.modes.verify import drive_verify

__all__ = ["drive"]


def drive(
    run: Recording, script: Trace | None, *, record: Path | None = None, flip: bool = False
) -> None:
    """Run a case once; `script` is the reference's trace, None for the reference itself.

    `record` is where a spilled sequence is written by the reference and read in a crossing;
    `flip` changes the last byte of what is restored.
    """
    with run.opened():
        if run.case.widths:
            drive_verify(run, script)
        else:
            _decode(run, script, record, flip)


def _decode(run: Recording, script: Trace | None, record: Path | None, flip: bool) -> None:
    logits_SV = prefill(run)
    run.prefilled(logits_SV)
    for step in range(run.case.steps):
        if run.case.spill == step:
            spilled(run, record if script is None or run.case.crossing else None, script, flip)
        tokens = argmax_rows(logits_SV).tolist() if script is None else script.fed[step]
        logits_SV = run.timed(lambda tokens=tokens: decode(run, tokens))
        run.stepped(tokens, logits_SV, (1,) * len(tokens))


def prefill(run: Recording) -> torch.Tensor:
    """Each sequence's prompt, one after another: logits [S, V] of the last tokens."""
    rows = []
    for sequence, prompt in zip(run.sequences, run.case.prompts, strict=True):
        done = resumed(run, sequence, prompt) if run.case.restored else 0
        rows.append(run.forward.prefill(sequence, prompt[done:], run.case.chunk).clone())
    return torch.stack(rows)


def decode(run: Recording, tokens: tuple[int, ...]) -> torch.Tensor:
    """One token more of each sequence: logits [S, V]."""
    if len(run.sequences) == 1:
        return run.forward.decode(run.sequences[0], tokens[0])[None]
    return run.forward.decode_batch(run.sequences, tokens)
