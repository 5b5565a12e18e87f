"""A sequence saved as a record and restored into another one, in the middle of a case or before it.

The sequence that was saved stays open, its bytes overwritten: what is restored has another slot
and other blocks, and nothing of it can be read where it was.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from metpipe.diff.trace import Trace
from metpipe.engine.pools import Sequence as Opened
from metpipe.engine.spilling import read_place, restore, save
from metpipe.stages.modes.recording import Recording

__all__ = ["resumed", "spilled"]

NAN = (0xC0, 0x7F, 0xC0, 0x7F)
"""The bytes of a quiet NaN of f32, and of two of bf16. A flipped bit can make a value small, and
what that adds to a sum can be lost in rounding; a NaN reaches all that reads it."""


def spilled(run: Recording, record: Path | None, script: Trace | None, flip: str | None) -> None:
    """Save the case's sequence, restore it elsewhere, and let the case go on with that one.

    `record`: the reference (no script) writes it there, others restore what lies there.
    """
    old = run.leave_sequence()
    own_B, held = save(run.model, old), run.model.state_digests(old)
    run.extra_states["record"] = run.model.hash_bytes(own_B)
    if record is not None and script is None:
        np.save(record, own_B.numpy())
    restored_B = own_B if record is None or script is None else torch.from_numpy(np.load(record))
    if flip is not None:
        restored_B, at = restored_B.clone(), read_place(run.model, old, flip)
        restored_B[at : at + len(NAN)] = torch.tensor(NAN, dtype=torch.uint8)
    scribble(run, old)
    new = run.model.open(reserve=run.case.reserved[0])
    run.take_sequence(new)
    restore(run.model, new, restored_B)
    if restored_B is own_B:
        run.expect_restored(held, new)


def resumed(run: Recording, sequence: Opened, prompt: tuple[int, ...]) -> int:
    """Prefill the leading tokens in a sequence of their own and restore its record into this one.

    Returns how many tokens the sequence holds then.
    """
    head = prompt[: run.case.restored]
    with run.guests((len(head),)) as (prime,):
        run.forward.prefill(prime, head, run.case.chunk)
        record_B, held = save(run.model, prime), run.model.state_digests(prime)
        scribble(run, prime)
    run.rebase()
    restore(run.model, sequence, record_B)
    run.expect_restored(held, sequence)
    return sequence.length


def scribble(run: Recording, sequence: Opened) -> None:
    """NaN wherever the sequence's state lay."""
    states = run.model.circuit.states
    for name, pool in run.model.states.items():
        if states[name].kind == "recurrent":
            pool[sequence.slot] = float("nan")
            continue
        size = run.model.sizes.block_size
        for block in sequence.blocks:
            pool[block * size : (block + 1) * size] = float("nan")
