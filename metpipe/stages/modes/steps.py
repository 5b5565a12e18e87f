"""The plain steps of a case: each sequence's prompt, then one token more of each.

Shapes: S sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from metpipe.engine.pools import Sequence as Opened
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.spill import resumed

__all__ = ["decode", "prefill"]


def prefill(run: Recording, sequences: Sequence[Opened]) -> tuple[torch.Tensor, list[int]]:
    """Each sequence's prompt, one after another: logits [S, V] of the last tokens, ids chosen."""
    rows, chosen = [], []
    for sequence, prompt in zip(sequences, run.case.prompts, strict=True):
        done = resumed(run, sequence, prompt) if run.case.restored else 0
        rows.append(run.forward.prefill(sequence, prompt[done:], run.case.chunk).clone())
        chosen += run.forward.chosen(1)
    return torch.stack(rows), chosen


def decode(run: Recording, sequences: Sequence[Opened], tokens: Sequence[int]) -> torch.Tensor:
    """One token more of each sequence: logits [S, V], which the next step overwrites."""
    if len(sequences) == 1:
        return run.forward.decode(sequences[0], tokens[0])[None]
    return run.forward.decode_batch(sequences, tokens, padded=run.case.padded)
