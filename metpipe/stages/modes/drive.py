"""Drives a case through a forward: the reference decides the tokens, every other run replays them.

Shapes: S sequences, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from metpipe.diff.argmax import argmax_rows
from metpipe.diff.trace import Trace
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.spill import spilled
from metpipe.stages.modes.steps import decode, prefill
from metpipe.stages.modes.verify import Spill, drive_verify

__all__ = ["drive"]


def drive(
    run: Recording, script: Trace | None, *, record: Path | None = None, flip: str | None = None
) -> None:
    """Run a case once; `script` is the reference's trace, None for the reference itself.

    `record` is where a spilled sequence is written by the reference and read in a crossing;
    `flip` names the state whose last byte is changed in what is restored.
    """
    spill = partial(spilled, run, record if run.case.crossing else None, script, flip)
    if run.case.widths:
        drive_verify(run, script, spill)
        return
    with run.opened():
        _decode(run, script, spill)


def _decode(run: Recording, script: Trace | None, spill: Spill) -> None:
    logits_SV, chosen = prefill(run, run.sequences)
    run.prefilled(logits_SV, chosen)
    for step in range(run.case.steps):
        if run.case.spill == step:
            spill()
        if script is None:
            tokens = argmax_rows(logits_SV).tolist()
            run.expect_greatest(tokens, chosen)
        else:
            tokens = list(script.fed[step])
        logits_SV = run.timed(partial(decode, run, run.sequences, tokens))
        chosen = run.forward.chosen(len(tokens))
        run.stepped(tokens, logits_SV, (1,) * len(tokens), chosen=chosen)
    if script is None:
        run.expect_greatest(argmax_rows(logits_SV).tolist(), chosen)
