"""One way of computing some rows: a case with the tokens that it is fed, under one forward.

Shapes: R rows of a step, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from metpipe.diff.controls import PREFILL
from metpipe.diff.invariance import Side
from metpipe.diff.trace import Trace
from metpipe.engine.forward import Forward
from metpipe.engine.model import Model
from metpipe.stages.invariance.table import Planned, Table, alone
from metpipe.stages.modes.case import Case
from metpipe.stages.modes.drive import drive
from metpipe.stages.modes.recording import Recording
from metpipe.stages.modes.unowned import UnownedBytes

__all__ = ["Leg", "alone_again", "run_leg", "script_of"]


@dataclass(frozen=True, slots=True)
class Leg:
    """What was computed, the tokens that were fed, what nobody owned, what cannot be true."""

    side: Side
    fed: tuple[tuple[int, ...], ...]
    unowned: UnownedBytes
    contradictions: tuple[str, ...]


@dataclass(slots=True)
class _Collect:
    """Keeps every row of logits."""

    rows_at: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)

    def rows(self, step: int | None, logits_RV: torch.Tensor) -> tuple[str, ...]:
        """Keep the rows; they are a copy already."""
        for row, logits_V in enumerate(logits_RV):
            self.rows_at[PREFILL if step is None else step, row] = logits_V
        return ("",) * len(logits_RV)

    def ids(self, step: int | None, ids: Sequence[int]) -> None:
        """What the head drafts next is fed them: its logits tell."""

    def states(self, step: int, digests: Sequence[str]) -> None:
        """States are compared at the end."""


def run_leg(
    model: Model, forward: Forward, case: Case, script: Trace | None, *, check_steps: bool
) -> Leg:
    """Run a case; without a script, greedily."""
    watch = _Collect()
    run = Recording(model, forward, case, watch, check_steps=check_steps)
    drive(run, script)
    trace = run.trace()
    side = Side(watch.rows_at, trace.state_digests)
    return Leg(side, trace.fed, run.unowned(), tuple(run.contradictions))


def script_of(leg: Planned) -> Trace:
    """A trace that only says what is fed and accepted, and what the draft head starts from."""
    nothing = tuple(() for _ in leg.fed)
    return Trace(
        prompts=leg.case.prompts,
        fed=leg.fed,
        prefill_digests=(),
        step_digests=nothing,
        step_states=nothing,
        state_digests={},
        enqueue_ms=(0.0,) * len(leg.fed),
        step_ms=(0.0,) * len(leg.fed),
        accepted=leg.accepted,
        drafted=(leg.drafted,),
        following=leg.following,
    )


def alone_again(table: Table, index: int, tokens: Sequence[int]) -> Planned:
    """A prompt alone, fed what it was fed before."""
    fed = tuple((token,) for token in tokens)
    return Planned("alone", alone(table, index), fed)
